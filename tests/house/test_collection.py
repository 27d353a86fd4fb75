"""Collection imports no library that only few tests use.

Each process of pytest-xdist collects all tests, so such an import costs seconds in each. The test reads what
its own process has collected and costs nothing; in ``make test`` these are all tests.
"""

EXPENSIVE = """
    accelerate boto3 botocore datasets lightning mlflow moto pandas peft pyarrow s3fs scipy sklearn sphinx
    tensorboard tokenizers torchmetrics transformers trl wandb
"""
"""Each costs 0.1 to 4 s of CPU time. Not here: torch, fastapi and sqlalchemy, which most tests need, and
schemathesis, which pytest imports as one of its plugins."""


def find_expensive_imports(modules):
    """Return each expensive library, with the module of this project whose import came before."""
    found, importer = {}, ""
    for name in modules:
        if name.startswith(("tests.", "elastane.")):
            importer = name
        elif name in EXPENSIVE.split():
            found[name] = importer
    return found


def test_collection_imports_no_library_of_few_tests(collected_modules):
    assert find_expensive_imports(collected_modules) == {}, (
        "import the library in the function that uses it, or name it with tests.lazy_modules.LazyModule"
    )


def test_an_expensive_import_is_found_with_the_module_before_it():
    modules = ("torch", "tests.unit.test_a", "tests.unit.test_b", "trl.core", "trl", "tests.unit.test_c")
    assert find_expensive_imports(modules) == {"trl": "tests.unit.test_b"}
