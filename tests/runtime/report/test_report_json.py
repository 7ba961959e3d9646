"""The JSON report against docs/report.schema.json."""

import jsonschema
import pytest
import report_files
from report_files import RUNS, SAMPLES, SCHEMA, problems, report, runs, samples


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", ("empty", "full", "longest", *RUNS))
def test_reports_follow_the_schema(name: str) -> None:
    assert problems(report(name)) == []


def test_the_schema_knows_what_it_does_not_allow() -> None:
    """That a wrong report is found is what makes the test above worth something."""
    for change in ({"steps": "20"}, {"a_field_of_its_own": 1}, {"schema": 2}, {"end": "gone"}, {"devices": {"tpu": {}}}):
        assert problems(report("full") | change), change
    for path in (("facts",), ("devices", "cpu"), ("devices", "cuda:0", "timeline"), ("oom_events", 0), ("leaks", 0), ("last_region",)):
        whole = report("full")
        inner = whole
        for key in path:
            inner = inner[key]
        inner.pop(next(iter(inner)))
        assert problems(whole), path


def keys_of_schema(schema: dict, path: str = "") -> set[str]:
    """Every field, by its path; the members of `devices` by the kind of the device."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    found = set()
    for part in schema.get("anyOf", []):
        found |= keys_of_schema(part, path)
    for key, value in (schema.get("properties", {}) | schema.get("patternProperties", {})).items():
        found |= {f"{path}/{key}"} | keys_of_schema(value, f"{path}/{key}")
    return found | (keys_of_schema(schema["items"], path + "[]") if "items" in schema else set())


def keys_of_report(value: object, path: str = "") -> set[str]:
    if isinstance(value, list):
        return set().union(*(keys_of_report(v, path + "[]") for v in value))
    if not isinstance(value, dict):
        return set()
    found = set()
    for key, inner in value.items():
        if path == "/devices":
            key = "^cpu$" if key == "cpu" else "^cuda:[0-9]+$" if key.startswith("cuda") else "^(pinned|managed)$"
        found |= {f"{path}/{key}"} | keys_of_report(inner, f"{path}/{key}")
    return found


def test_every_field_of_the_schema_is_written_and_the_other_way_round() -> None:
    assert keys_of_report(report("full")) == keys_of_schema(SCHEMA)


def test_every_field_is_described() -> None:
    def without(schema: dict, path: str) -> list[str]:
        parts = schema.get("properties", {}) | schema.get("patternProperties", {}) | ({"[]": schema["items"]} if "items" in schema else {})
        missing = [] if "description" in schema or "$ref" in schema else [path]
        return missing + [m for key, part in parts.items() for m in without(part, f"{path}/{key}")]

    assert without(SCHEMA, "") == []
    for name, part in SCHEMA["$defs"].items():
        assert without(part, name) == []


def test_a_long_run_stays_small() -> None:
    assert (samples() / "longest.json").stat().st_size < 5e6


def test_a_runs_figures_hang_together() -> None:
    nothing, rescued, refused = (report(name) for name in RUNS)
    assert (nothing["end"], nothing["rescues"], nothing["refused"]) == ("exited", 0, 0) and nothing["steps"] == 10
    assert rescued["rescues"] == sum(e["count"] for e in rescued["oom_events"]) > 0 == rescued["refused"]
    assert rescued["last_region"]["micro_batch"] == rescued["micro_batch"] < rescued["last_region"]["batch"]
    assert refused["refused"] == len(refused["refusals"]) == 1 and refused["refusals"][0]["reason"]
    for each in (nothing, rescued, refused):
        cpu = each["devices"]["cpu"]
        assert sum(cpu["live_by_category"].values()) == cpu["live_bytes"]
        assert 0.9 * cpu["peak_bytes"] <= sum(cpu["peak_by_category"].values()) <= cpu["peak_bytes"]
        assert (each["host"], each["command"]) == ("example", ".venv/bin/python examples/digits_mlp.py --steps 10")
    assert rescued["devices"]["cpu"]["peak_bytes"] < rescued["devices"]["cpu"]["budget_bytes"] < nothing["devices"]["cpu"]["peak_bytes"]


@pytest.mark.parametrize("name", RUNS)
def test_the_figures_of_a_run_add_up(name: str) -> None:
    for device in report(name)["devices"].values():
        by_category = device["peak_by_category"]
        assert sum(by_category.values()) == device["peak_bytes"]
        held = dict.fromkeys(by_category, 0)
        for holder in device["holders"]:
            held[holder["category"]] += holder["bytes"]
        assert held == by_category or len(device["holders"]) == 40 and all(held[category] <= size for category, size in by_category.items())


@pytest.mark.parametrize("name", RUNS)
def test_the_text_of_a_run_is_a_screen(name: str) -> None:
    text = (runs() / f"{name}.txt").read_text()
    lines = text.splitlines()
    assert 5 <= len(lines) <= 24 and max(map(len, lines)) <= 120
    assert all(line.startswith("koila: ") for line in lines) and "\x1b" not in text
    assert lines[0].startswith(f"koila: {report(name)['steps']} step") and lines[-1 if name == "nothing" else 1]
    whole = " ".join(line.removeprefix("koila: ").strip() for line in lines)
    assert "cpu: peak " in whole and "examples/digits_mlp.py:" in whole and "activations" in whole and ("next: " in whole or "do: " in whole)
    for refusal in report(name)["refusals"]:
        assert refusal["reason"] in whole
    assert ("4096 rows as " in whole and "4096 rows at once ran out in aten::" in whole) == (name != "nothing")


@pytest.mark.parametrize("name", RUNS)
def test_nothing_of_this_machine_is_in_the_examples(name: str) -> None:
    for form in ("txt", "json"):
        text = (runs() / f"{name}.{form}").read_text()
        assert str(report_files.ROOT) not in text and len(text) < 200_000
