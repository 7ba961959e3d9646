"""Makes one page of page.html, the style sheets, the scripts and the licence: all but the data, which html.cc puts in at exit.

    bundle.py TEMPLATE STYLES... SCRIPTS... LICENSE PAGE ASSEMBLY

The page may fetch nothing and run nothing but these very scripts: its Content-Security-Policy names their hashes. ASSEMBLY takes PAGE into
libkoila.so, so that no file has to be found when a report is written.
"""

import base64
import hashlib
import html
import pathlib
import sys

DATA = "@DATA@"  # as in html.cc


def inline(tag: str, path: pathlib.Path) -> tuple[str, str]:
    """The element, and what the policy calls it."""
    text = "\n" + path.read_text(encoding="utf-8").strip() + "\n"
    if f"</{tag}" in text.lower() or "<!--" in text:
        sys.exit(f"{path}: holds </{tag} or <!--, which would end the element early")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"<{tag}>{text}</{tag}>", f"'sha256-{digest}'"


def main() -> None:
    template, *parts, page, assembly = map(pathlib.Path, sys.argv[1:])
    styles = [inline("style", part) for part in parts if part.suffix == ".css"]
    scripts = [inline("script", part) for part in parts if part.suffix == ".js"]
    licences = [part.read_text(encoding="utf-8") for part in parts if part.suffix not in (".css", ".js")]
    policy = "; ".join((
        "default-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "style-src " + " ".join(name for _, name in styles),
        "script-src " + " ".join(name for _, name in scripts),
    ))
    text = template.read_text(encoding="utf-8")
    for mark, value in {
        "@POLICY@": policy,
        "@STYLES@": "\n".join(element for element, _ in styles),
        "@SCRIPTS@": "\n".join(element for element, _ in scripts),
        "@LICENCES@": html.escape("\n".join(licences)),
    }.items():
        if text.count(mark) != 1:
            sys.exit(f"{template}: expected {mark} once")
        text = text.replace(mark, value)
    if text.count(DATA) != 1:
        sys.exit(f"{template}: expected {DATA} once, and in no style or script")
    page.write_text(text, encoding="utf-8")
    assembly.write_text(f"""\
        .section .rodata
        .globl koila_page, koila_page_end
        .hidden koila_page, koila_page_end
koila_page:
        .incbin "{page}"
koila_page_end:
        .section .note.GNU-stack, "", %progbits
""")


if __name__ == "__main__":
    main()
