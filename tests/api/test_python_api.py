"""koila.report(), memory(), events() and budget() of the Python package, in a process under koila and in one without."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "lib" / "libkoila.so"

TRAIN = """
import json, torch, koila
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(rows=4096):
    optimizer.zero_grad()
    model(torch.randn(rows, 64)).square().mean().backward()
    optimizer.step()
"""


def python(code, preload=True, **more):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KOILA_") and k != "LD_PRELOAD"}
    environment |= {"PYTHONPATH": str(ROOT / "python"), "KOILA_REPORT": "off", "KOILA_LOG": "off", "OMP_NUM_THREADS": "1"} | more
    if preload:
        environment["LD_PRELOAD"] = str(LIBRARY)
    done = subprocess.run([sys.executable, "-c", TRAIN + code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_memory_budget_events_and_report():
    found = python("""
from dataclasses import asdict
told = []
with koila.events(told.append, "rescue", "step"):
    step()
    before = koila.memory()
    with koila.budget(koila.memory().live + 2 * 2**20):
        inside = koila.memory().budget
        step()
    after = koila.memory().budget
seen = len(told)
step()
print(json.dumps({"before": asdict(before), "inside": inside, "after": after, "told": [asdict(t) for t in told], "seen": seen, "report": koila.report(),
                  "live": koila.memory(torch.device("cpu")).live, "none": koila.memory("cuda:7") is None}))
""")
    before = found["before"]
    assert before["device"] == "cpu" and before["live"] == sum(before["by_category"].values()) > 0 and before["budget"] == found["after"] == 0
    assert before["by_category"]["parameters"] == 4 * (64 * 64 + 64 + 64 + 1)
    assert found["inside"] == before["live"] + 2 * 2**20
    assert found["seen"] == len(found["told"])
    kinds = [event["kind"] for event in found["told"]]
    assert kinds.count("step") == 2 and "rescue" in kinds
    rescue = next(event for event in found["told"] if event["kind"] == "rescue")
    assert 0 < rescue["micro_batch"] < rescue["batch"] == 4096 and rescue["op"].startswith("aten::") and rescue["phase"] == "forward"
    assert found["report"]["steps"] == 3 and found["report"]["rescues"] >= 1


def test_a_budget_from_now_on():
    found = python("""
koila.set_budget("300M")
seen = [koila.memory().budget]
with koila.budget("80M"):
    seen.append(koila.memory().budget)
koila.set_budget(None)
print(json.dumps(seen + [koila.memory().budget]))
""")
    assert found == [300 << 20, 80 << 20, 0]


def test_a_notebook_shows_the_page():
    page = python("step()\nprint(json.dumps(koila.report()._repr_html_()))")
    assert page.startswith('<iframe srcdoc="&lt;!doctype html&gt;') and page.endswith("</iframe>") and page.count('"') == 4, "all of the page is within the attribute"


def test_a_report_goes_where_it_is_asked_for(tmp_path):
    assert python(f"""
step()
koila.report({str(tmp_path / 'run.html')!r})
try:
    koila.report("/nonexistent/run.json")
except RuntimeError as error:
    print(json.dumps(str(error)))
""").startswith("koila.report('/nonexistent/run.json'): nothing was written")
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")


def test_a_listener_that_is_never_closed_ends_with_python():
    assert python("koila.events(lambda event: None)\nstep()\nprint(1)\n") == 1


def test_what_is_wrong_is_said():
    found = python("""
said = []
for wrong in (lambda: koila.memory("xpu"), lambda: koila.events(print, "stpe"), lambda: koila.budget("80X").__enter__(), lambda: koila.budget(0).__enter__(), lambda: koila.set_budget(0)):
    try:
        wrong()
    except ValueError as error:
        said.append(str(error))
print(json.dumps(said))
""")
    assert len(found) == 5 and "'xpu'" in found[0] and "stpe" in found[1] and "MiB" in found[2]


def test_sizes_are_those_of_the_variables():
    assert python("print(json.dumps([koila.live._bytes(s) for s in (7, '7B', '4G', '80M', '1.5GiB', '2 kb', '1T')]))") == [
        7, 7, 4 << 30, 80 << 20, 3 << 29, 2000, 1 << 40]


def test_without_koila():
    found = python("""
step()
said = []
for function in (koila.report, lambda: koila.budget("1M").__enter__(), lambda: koila.events(print)):
    try:
        function()
    except RuntimeError as error:
        said.append(str(error))
print(json.dumps([koila.loaded(), koila.memory() is None, said]))
""", preload=False, KOILA_MODE="off")
    assert found[:2] == [False, True] and len(found[2]) == 3 and all("KOILA_MODE=off" in text for text in found[2])
