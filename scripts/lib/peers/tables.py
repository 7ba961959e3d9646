"""Results to Markdown: pure text, with nothing measured or imported that measures."""

import statistics

from alternatives import ABSENT, WAYS

TITLES = {"cnn": "CNN with batch norm", "gpt": "GPT", "bert": "BERT, fine-tuned with transformers' Trainer", "clip": "CLIP, two towers and a contrastive loss",
          "vae": "VAE, the last batch ragged"}
EXACT = {True: 1e-3, False: 1e-9}  # the error up to which a gradient counts as the full batch's: in float32, and in float64


def lower_quartile(values):
    return statistics.quantiles(values, n=4)[0] if len(values) > 1 else values[0]


def step_seconds(results):
    """The lower quartile of all epochs of all processes."""
    found = [seconds for result in results for seconds in result.get("epochs", [])]
    return lower_quartile(found) if found else None


def shown_error(error):
    if error is None:
        return ""
    if error == 0:
        return "0"
    return f"{error:.0e}" if error < 0.01 else f"{error:.2f}"


def speed_cell(result, seconds, plain_seconds):
    """Throughput over plain's, or the reason why nothing was measured."""
    if result["outcome"] == "memory":
        return "out of memory"
    if result["outcome"] != "ok":
        return "error"
    return f"{plain_seconds / seconds:.2f}" if seconds else "too slow"


def worst(values):
    """The largest of those that are there; None: none is."""
    found = [value for value in values if value is not None]
    return max(found) if found else None


def batch_cell(results, rows):
    """The batch that was trained with at each budget: that of the work, or smaller ones."""
    batches = [result["batch"] if result["outcome"] == "ok" else None for result in results]
    if all(batch in (rows, None) for batch in batches):
        return f"{rows}" if any(batches) else ""
    return ", ".join("-" if batch is None else str(batch) for batch in batches)


def state_cell(results):
    """What the first failed try has moved, where there was one."""
    states = [result["state"] for result in results if result.get("state")]
    if not states:
        return ""
    moved = []
    if any(state["statistics"] for state in states):
        moved.append("running statistics")
    partial = [state["gradients"] for state in states if state["gradients"]]
    if partial:
        moved.append(f"gradients of {max(partial)} of {states[0]['of']} parameters")
    if any(state["generator"] for state in states):
        moved.append("the generator")
    if any(state["steps"] for state in states):
        moved.append("steps taken to try")
    return ", ".join(moved) or "nothing"


def factor_cell(factor, most):
    if not factor:
        return ""
    return f"{most} or more" if factor >= most else f"{factor:.2f}"


def work_table(work, rows, entries, most):
    """entries: way -> {"lines", "speed": [result of each budget], "seconds": [of each budget, or None], "plain": [seconds of each budget], "errors": [...], "largest"}."""
    shares = [f"{share:.0%}" for share in next(iter(entries.values()))["shares"]]
    head = ["alternative", "changed lines", *(f"throughput at {share}" for share in shares), "rows of a step", "error of the gradient", "of statistics", "seconds until it trains", "largest batch", "a failure leaves"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for way, entry in entries.items():
        trained = [result for result in entry["speed"] if result["outcome"] == "ok"]
        errors = [error for error in entry["errors"] if error and error.get("gradient") is not None]
        until = worst([result["until_first"] + result.get("lost", 0) for result in trained])
        row = [WAYS[way].title, str(entry["lines"]),
               *(speed_cell(*cell) for cell in zip(entry["speed"], entry["seconds"], entry["plain"])),
               batch_cell(entry["speed"], rows),
               shown_error(worst([max(error["gradient"], error["ragged"]) for error in errors])),
               shown_error(worst([error["statistics"] for error in errors])),
               f"{until:.2f}" if until is not None else "", factor_cell(entry["largest"], most), state_cell(entry["speed"])]
        lines.append(f"| {' | '.join(row)} |")
    return [f"### {TITLES[work]}", "", *lines, ""]


def refusals(entries_of):
    """Errors that are no out-of-memory, each once."""
    found = {}
    for work, entries in entries_of.items():
        for way, entry in entries.items():
            for result in entry["speed"]:
                if result["outcome"] not in ("ok", "memory"):
                    found.setdefault((way, work), result["outcome"].replace("`", ""))
    return [f"- {WAYS[way].title}, {TITLES[work]}: `{text[:160]}`" for (way, work), text in found.items()]


def absent():
    return [f"- **{name}.** {reason}" for name, reason in ABSENT]


def is_exact(entry, way):
    """Whether at every budget where it trains it gives the full batch's gradient and statistics."""
    errors = [error for error in entry["errors"] if error and error.get("gradient") is not None]
    bound = EXACT[WAYS[way].single]
    return bool(errors) and all(max(error["gradient"], error["ragged"], error["statistics"] or 0) <= bound for error in errors)


def short_table(entries_of):
    """The form for README.md: for each alternative, of how many (work, budget) it trains, how many of these exactly, and the throughput of those."""
    lines = ["| alternative | trains, of the runs it is for | with the full batch's numbers | throughput of plain | changed lines |", "|---" * 5 + "|"]
    for way in WAYS:
        entries = [entries[way] for entries in entries_of.values() if way in entries]
        if not entries:
            continue
        runs = sum(len(entry["speed"]) for entry in entries)
        trains = sum(result["outcome"] == "ok" for entry in entries for result in entry["speed"])
        exact = sum(result["outcome"] == "ok" for entry in entries if is_exact(entry, way) for result in entry["speed"])
        ratios = [plain / seconds for entry in entries for plain, seconds in zip(entry["plain"], entry["seconds"]) if seconds]
        speed = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""
        lines.append(f"| {WAYS[way].title} | {trains} of {runs} | {exact} | {speed} | {span([entry['lines'] for entry in entries])} |")
    return lines


def span(numbers):
    return str(min(numbers)) if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"


def curve_table(curve, factors):
    """curve: work -> way -> {factor: throughput over plain's on the batch that fits, or None}."""
    lines = []
    for work, ways in curve.items():
        lines += [f"| {work} | {' | '.join(f'{factor:g} x' for factor in factors)} |", "|---" * (1 + len(factors)) + "|"]
        for way, points in ways.items():
            cells = [f"{points[factor]:.2f}" if points.get(factor) else "out of memory" for factor in factors]
            lines.append(f"| {WAYS[way].title} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def between_markers(page, marker, lines):
    """The page with its generated part of that name replaced."""
    begin, end = f"<!-- {marker}: made by scripts/bench_peers -->", f"<!-- end of {marker} -->"
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return "\n".join([before + begin, "", *lines]).rstrip() + "\n\n" + end + after
