"""No file of the sources is longer than a reader can hold, and no function than a screen or two."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PARTS = ("shim", "runtime", "torchglue", "tool", "include")
LINES_OF_A_FILE = 400
LINES_OF_A_FUNCTION = 80

# Longer ones, and why they still are. A line that is not needed any more fails.
LONG_FILES = {
    "include/koila/detail/step_run.h": "one template whose parts call each other, and every program that uses it compiles it",
}
LONG_FUNCTIONS = {}


def without_texts(source):
    """The source with its comments, strings and characters blanked out, line by line as it was."""
    pattern = r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    return re.sub(pattern, lambda m: " " + "\n" * m.group().count("\n"), source, flags=re.DOTALL)


def functions(source):
    """(name, lines) of each function with a body, what is defined within it included."""
    found = []
    text = re.sub(r"^[ \t]*#.*(?:\\\n.*)*$", "", without_texts(source), flags=re.M)
    line, head, inside = 1, "", []  # inside: what each open brace belongs to
    head_line = 1
    for c in text:
        if c == "\n":
            line += 1
        in_body = "body" in [kind for kind, *_ in inside]
        if c == "{":
            if in_body:
                inside.append(("block",))
            elif re.match(r"\s*(?:template\s*<.*>\s*)?(?:inline\s+)?(?:namespace|class|struct|union|extern)\b", head) and not re.search(r"\)\s*(?:const)?\s*$", head):
                inside.append(("container",))
            elif "(" in head and not head.rstrip().endswith("="):
                inside.append(("body", re.sub(r"\s+", " ", head.split("(")[0]).strip().split(" ")[-1], head_line))
            else:
                inside.append(("body", "", line))  # an initializer, an enumeration
            head = ""
        elif c == "}":
            kind = inside.pop() if inside else ("block",)
            if kind[0] == "body" and kind[1]:
                found.append((kind[1], line - kind[2] + 1))
            head = ""
        elif c == ";" and not in_body:
            head = ""
        elif not in_body:
            if not head.strip() and not c.isspace():
                head, head_line = "", line
            head += c
    return found


SOURCES = {str(path.relative_to(ROOT)): path.read_text() for part in PARTS for path in sorted((ROOT / part).rglob("*")) if path.suffix in (".cc", ".h", ".c")}


def test_files():
    long = {name: text.count("\n") for name, text in SOURCES.items() if text.count("\n") > LINES_OF_A_FILE}
    assert long.keys() == LONG_FILES.keys(), long


def test_functions():
    long = {f"{name}: {function}": lines for name, text in SOURCES.items() for function, lines in functions(text) if lines > LINES_OF_A_FUNCTION}
    assert long.keys() == LONG_FUNCTIONS.keys(), long


def test_functions_are_found():
    source = 'namespace a {\n// not { this\nint f(int x) {\n  if (x) {\n    return 1;\n  }\n  return g("{", [] {\n    return 2;\n  });\n}\nconst T kTable{\n    {1, 2},\n};\n' \
             "class B {\n  int h() const { return 3; }\n  template <class F>\n  void i(F&& f) {\n    f();\n  }\n};\n}\n"
    assert functions(source) == [("f", 8), ("h", 1), ("i", 4)]
