"""Which of the many cases a run takes. KOILA_TESTS=full takes all of them."""

import os
import re
import zlib

import harness
import xdist.scheduler


def sampled(item):
    """By name, so that a new test does not change what is taken of the others. Every family and every test function stays, but for those that
    compile and for one example."""
    name = item.name
    number = zlib.crc32(f"{item.path.name}::{name}".encode())
    function, _, parameters = name.rstrip("]").partition("[")
    match item.path.stem, function:
        case "test_exact_microbatch", "test_micro_batch":
            return parameters.endswith(("-3-adamw", "-1-sgd"))
        case "test_exact_budget", "test_budget" if parameters.endswith("-sgd"):
            return number % 3 == 0
        case "test_exact_budget", "test_larger_budget":
            return number % 2 == 0
        case "test_nothing_to_rescue", _ if parameters:
            return number % 2 == 0
        case "test_real_models", "test_budget":
            return number % 2 == 0
        case "test_dropout", "test_one_set_of_masks":
            return number % 2 == 0
        case _, "test_each_header_compiles_alone":  # koila/torch.h has them all
            return "koila/torch.h" in name or number % 6 == 0
        case "test_cuda", "test_micro_batch" | "test_stages":
            return number % 3 != 0
        case "test_cuda", "test_budget":
            return number % 2 == 0
        case "test_cuda", "test_stages_in_pinned_memory":
            return parameters.endswith("-0.5")
        case _, "test_every_segment_fails_once":
            return parameters == "vit"
        case "test_examples", _:
            return not parameters.startswith("digits_mlp")
        case "test_rules", _ if function.startswith("test_example"):
            return number % 2 == 0
        case _, "test_bad_file_is_said_and_the_program_runs_on" | "test_a_file_that_is_none_costs_one_line":
            return number % 2 == 0
        case "test_trainers", _:  # one way to accumulate each
            return parameters in ("hugging_face-2", "by_lightning-1")
        case "test_optimizers", "test_nothing_is_changed_by_tracking":
            return number % 2 == 0
        case "test_optimizers", _:  # the rungs that tell most
            return not parameters.startswith(("2-", "3-"))
        case "test_ladder", _ if function.startswith("test_budget_of"):
            return not parameters.startswith(("0-", "1-", "3-", "0,2,3-"))
        case "test_ladder", _ if function.startswith("test_each_allocation_fails"):
            return not parameters.startswith(("0-", "1-", "3-"))
        case "test_ladder", _ if parameters:
            return not parameters.startswith(("0-", "3-"))
        case "test_masks", _:
            return parameters != "2"
        case "test_harness", _ if function.startswith("test_order_of_rows"):  # the plain run's own checks
            return number % 6 == 0
        case "test_traps" | "test_opaque", "test_micro_batch":  # hundreds of families, and a part of what there is for them
            return parameters.endswith("-3") and number % 2 == 0 or number % 13 == 0
        case "test_traps" | "test_opaque", _:
            return number % 11 == 0 and function != "test_inductor"
    return True


# Long tests that share no fixture.
APART = re.compile(r"tests/(?:docs|conformance)/|/test_(?:batch|trainers|sweep)\.py")
EXAMPLE = re.compile(r"/test_(?:examples|rules)\.py::\w+\[((?:custom_op/|digits_|char_|text_)[a-z]+)")


class ByFixture(xdist.scheduler.LoadScopeScheduling):
    """A file's tests go to one worker, for their fixtures and servers take longer than they; so do those of an example."""

    def _split_scope(self, nodeid):
        if APART.search(nodeid):
            return nodeid
        example = EXAMPLE.search(nodeid)
        return example[1] if example else nodeid.split("::")[0]


def pytest_xdist_make_scheduler(config, log):
    return ByFixture(config, log)


def pytest_collection_modifyitems(config, items):
    if os.environ.get("KOILA_TESTS") == "full":
        return
    kept = [item for item in items if sampled(item)]
    config.hook.pytest_deselected(items=[item for item in items if not sampled(item)])
    items[:] = kept


def pytest_sessionfinish(session, exitstatus):
    harness.stop_servers()
