"""What pages say of the sources holds: paths, names, variables, and the messages that they quote."""

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md")) + [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
OF_THE_SOURCES = ["architecture", "glossary"]  # pages that name files and functions

SOURCES = [path for folder in ("runtime", "torchglue", "shim", "tool", "include", "python") for path in sorted((ROOT / folder).rglob("*"))
           if path.suffix in (".cc", ".h", ".py", ".inc")]


def code_in(text):
    """What stands between backticks on a line, outside of blocks of code."""
    found, in_block = [], False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            in_block = not in_block
        elif not in_block:
            found += re.findall(r"`([^`]+)`", line)
    return found


def paths_in(text):
    """Folders and files that a page names, in its pictures too."""
    suffixes = (".cc", ".h", ".py", ".md", ".inc", ".S", ".json", ".toml", ".txt", ".sh", ".build")
    paths = {code for code in code_in(text) if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", code) and ("/" in code or code.endswith(suffixes))}
    for picture in re.findall(r"^```mermaid$(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        paths.update(re.findall(r"\b[\w-]+(?:/[\w-]+)*\.(?:cc|h)\b", picture))
    return sorted(paths)


def missing(paths):
    """Those that are neither below the root nor below torchglue/, as the pages have it."""
    return [path for path in paths if not (ROOT / path).exists() and not (ROOT / "torchglue" / path).exists()]


@pytest.mark.parametrize("page", OF_THE_SOURCES)
def test_paths_exist(page):
    paths = paths_in((ROOT / "docs" / f"{page}.md").read_text())
    assert len(paths) > 20, "a page of paths without them"
    assert missing(paths) == []


def test_a_path_that_is_not_there_is_found():
    assert paths_in("`region/run.cc`, `rescue/`, `a word`, `aten::relu`, `x.item()`\n```\n`in/a/block.cc`\n```\n") == ["region/run.cc", "rescue/"]
    assert paths_in('```mermaid\n  a["tape/tape.cc: calls"] --> b["a file"]\n```\n') == ["tape/tape.cc"]
    assert missing(["region/run.cc", "runtime/ledger.h", "region/walk.cc"]) == ["region/walk.cc"]


@functools.cache
def files():
    folders = ("docs", "examples", "include", "packaging", "python", "runtime", "scripts", "shim", "tests", "third_party", "tool", "torchglue")
    return [f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_of_the_other_pages_exist_somewhere(page):
    """These name a file by its end, from where their reader is: `koila/koila.h`, `alignment.h`."""
    named = [path for path in paths_in(page.read_text()) if re.search(r"\w\.(cc|h|py|md|inc)$", path)]
    assert [path for path in named if not any(file.endswith(f"/{path}") for file in files()) and not (ROOT / path).exists()] == []


def names_in(text):
    """Functions, types and constants of koila's that a page names: `Region::add`, `in_child`, `TapeValue`, `kStages`, `observe()`."""
    foreign = ("aten", "at", "c10", "torch", "nn", "koila")
    names = set()
    for code in code_in(text):
        name = code.removesuffix("()")
        if not re.fullmatch(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*", name) or name.split("::")[0] in foreign or name.isupper() or name.startswith("KOILA_"):
            continue
        if "::" in name or "_" in name.strip("_") or code.endswith("()") or re.match(r"k[A-Z]|[A-Z][a-z]+[A-Z]", name):
            names.add(name)
    return sorted(names)


@functools.cache
def words_of_files():
    more = [path for folder in ("tests", "scripts") for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".cc", ".h", ".py", ".sh")]
    return [set(re.findall(r"\w+", path.read_text())) for path in SOURCES + more]


def unknown(names):
    """Those of which no file has all parts."""
    return [name for name in names if not any(set(name.split("::")) <= words for words in words_of_files())]


@pytest.mark.parametrize("page", OF_THE_SOURCES)
def test_names_occur(page):
    assert unknown(names_in((ROOT / "docs" / f"{page}.md").read_text())) == []


def test_a_name_that_is_not_there_is_found():
    assert names_in("`Region::add`, `aten::add`, `relu`, `observe()`, `KOILA_MODE`, `two words`, `kStages`") == ["Region::add", "kStages", "observe"]
    assert unknown(["Region::add", "Region::no_such_" + "function"]) == ["Region::no_such_" + "function"]


def test_every_variable_is_on_its_page():
    table = (ROOT / "runtime" / "config.cc").read_text().split("constexpr Variable kVariables[] = {")[1].split("};")[0]
    known = set(re.findall(r'^    \{"(KOILA_\w+)"', table, re.MULTILINE))
    rows = [line.split("|")[1] for line in (ROOT / "docs" / "variables.md").read_text().splitlines() if line.startswith("| `KOILA_")]
    assert len(known) > 10
    assert known == {name for row in rows for name in re.findall(r"KOILA_\w+", row)}


def test_every_page_is_in_the_list_of_pages():
    listed = (ROOT / "README.md").read_text()
    assert [page.name for page in PAGES if page.parent.name == "docs" and f"docs/{page.name}" not in listed] == []


# --- messages ---

STRING = r'"((?:[^"\\\n]|\\.)*)"'
# What a message has of the run: sizes, figures, operators, types, and what a page leaves out.
OF_THE_RUN = re.compile(r"\.\.\.|…|\[[\d, ]*\]|\d[\d.,]*(?: ?(?:[KMGT]i?B|B|ms|s|%))?\b|\b(?:aten|mylib)::\w+|Shard\([^)]*\)|\b(?:Float|Double|Half|BFloat16|Long|Int|Bool)\b")


def strings_in(source):
    """The strings of a source, those that stand one behind the other as one."""
    found = []
    for match in re.finditer(rf"{STRING}(?:\s*{STRING})*", source):
        text = "".join(re.findall(STRING, match[0]))
        found.append(text.replace('\\"', '"').replace("\\n", "\n"))
    return found


@functools.cache
def strings():
    return frozenset(text for path in SOURCES for text in strings_in(path.read_text()) if len(text) > 2)


def is_made_of(text, known):
    """Whether a text can be put together from whole strings of the sources, but for its ends, where a part of one will do, and for marks between them."""
    if any(text in string for string in known):
        return True
    begins = {0} | {end for end in range(4, len(text)) if any(string.endswith(text[:end]) for string in known)}
    reached = begins
    for start in range(len(text)):
        if start not in reached:
            continue
        if len(text) - start > 3 and any(string.startswith(text[start:]) for string in known):
            return True
        for end in range(start + 1, len(text) + 1):
            piece = text[start:end]
            if piece in known or (len(piece) <= 3 and not re.search(r"\w", piece)):
                reached.add(end)
    return len(text) in reached


def is_said(message, known):
    """Whether koila can say so."""
    return all(is_made_of(part, known) or is_made_of(part.strip(), known) for part in OF_THE_RUN.split(message) if re.search(r"\w", part))


def quotes_in(text, by_symptom=False):
    """What a page gives as koila's words: all that stands behind `koila: `; and where the page goes by symptom, code of three words and more that is no command."""
    quotes = []
    for line in text.splitlines():
        if match := re.search(r"(?:^ *|`|Error: )koila: (.*)", line):
            quotes.append(re.split(r"`| \|", match[1])[0].strip())
    if by_symptom:
        quotes += [code for code in code_in(text) if len(code.split()) > 2 and not re.match(r"(koila|env|python|git) |koila: ", code)]
    return [quote for quote in quotes if re.search(r"\w\w", quote)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_quoted_is_said(page):
    quotes = quotes_in(page.read_text(), by_symptom=page.stem == "troubleshooting")
    assert page.stem not in ("troubleshooting", "architecture", "stages") or quotes, "a page of quotes without one"
    assert [quote for quote in quotes if not is_said(quote, strings())] == []


def test_a_message_that_nothing_says_is_found():
    known = frozenset(strings_in('say("refused" + ": out of memory" + " in " + op); throw E("one row of the batch "\n   "does not fit."); "cpu" " rows: "'))
    assert "one row of the batch does not fit." in known
    assert is_said("refused: out of memory in aten::relu", known)
    assert is_said("one row ... does not fit", known)
    assert not is_said("no dimension of the inputs ... can be split", known)
    assert not is_said("refused: no memory in aten::relu", known)
    assert quotes_in("text\n\n    koila:   kept outside: 2 MiB\n`koila: refused` and `koila run x y`, `koila::lazy`\n") == ["kept outside: 2 MiB", "refused"]
    assert quotes_in("| `it does not fit` | `koila doctor a b` | `word` |", by_symptom=True) == ["it does not fit"]
