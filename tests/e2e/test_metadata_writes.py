"""squeeze_, t_ and the like on values of a batch: the program's tensor has plain's shape, value and gradient."""

import cases


def test_shapes_and_values():
    plain, _ = cases.run("metadata_steps.py")
    found, _ = cases.run("metadata_steps.py", KOILA_LADDER="0,1")
    assert len(plain) > 100
    assert cases.differences(plain, found, 1e-12) == []
