def pytest_addoption(parser):
    parser.addoption(
        "--rewrite", action="store_true", help="rewrite the narrations of scenarios as they are now"
    )
