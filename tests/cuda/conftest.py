import pytest
from programs import PROGRAMS, koila, program


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    if not PROGRAMS.exists():
        pytest.skip("built without the CUDA toolkit's headers")


@pytest.fixture(scope="session")
def scenario():
    """Runs one scenario of programs/scenarios.cc under the preload."""

    def run(name: str, *arguments: object, **variables: str):
        return koila(program("scenarios"), name, *arguments, **variables)

    return run
