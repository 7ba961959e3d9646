import harness


def pytest_sessionfinish(session, exitstatus):
    harness.stop_servers()
