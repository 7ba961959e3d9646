import os

import pytest
import report_files


@pytest.fixture(scope="session", autouse=True)
def one_folder_for_all_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.getbasetemp()
    report_files.folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "koila-reports"
