"""How much memory a case is given: what it holds in any case, and a share of what its activations take."""

from harness import run, tracked


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
