"""How much memory a case is given: what it holds in any case, and a share of what its activations take."""

import dataclasses

from harness import Result, run, tracked


def budget_of(case, share=0.10):
    """Fixed memory (parameters, gradients, optimizer state, buffers, batch, and what the program itself keeps at full batch) plus a share
    of plain's other activations; measured by koila without a limit. No less than what is in use while the next batch is drawn, when the
    last one still lives unless the case `drops` it: nothing is split there. The test that asks is worth nothing unless activations
    outweigh the rest, so that is checked."""
    plain = tracked(case)
    activations = plain.stepping - plain.fixed
    assert activations > plain.fixed, f"{case.family}: activations {activations:,} B, fixed {plain.fixed:,} B; take more rows"
    held = case.task.held_per_row * (case.rows or case.task.rows)
    return max(plain.fixed + held + int(share * (activations - held)), int(1.01 * plain.loading))


def refused_run(case, **limits):
    """The plain run under the same limits, as a function for assert_exact_or_untouched."""
    return lambda: run(case, "track", **limits)


@dataclasses.dataclass
class Split:
    """How a step at the family's size for budgets does in micro-batches of so many rows, once it is known."""

    rows: int
    micro_batch: int
    fixed: int
    plain: int  # the peak beside what is fixed, plain and under koila
    koila: int
    result: Result

    @property
    def share(self):
        """The share of plain's activations that was split, from the peak: of what is split one micro-batch is there at a time."""
        return (self.plain - self.koila) / (self.plain * (1 - self.micro_batch / self.rows))


def split_share(case, micro_batch):
    # The first step of its kind runs whole up to its backward pass; the third is known.
    case = dataclasses.replace(case, rows=case.task.budget_rows, steps=4, limit_from=3, drops=True)
    whole = tracked(case)
    result = run(case, "rescue", microbatch=micro_batch, timeout=120)
    assert result.outcome == "ok", result.describe()
    return Split(case.rows, micro_batch, whole.fixed, whole.stepping - whole.fixed, result.peak - whole.fixed, result)
