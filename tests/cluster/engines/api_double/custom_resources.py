"""Resources with a definition: their schemas, rules and defaults, the columns of lists, and the sizes."""

import re
from typing import Any

from tests.cluster.engines.api_double.objects import ApiError, Document, Objects, now, parse_time
from tests.cluster.engines.api_double.resources import CUSTOM, RESOURCES

TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float)}
TYPES["boolean"] = bool
KEPT = ("apiVersion", "kind", "metadata")


class CustomResources:
    """What the definitions among the objects say."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def find_version(self, plural: str) -> Document | None:
        """Return the only version of the definition of a resource; None: it is built in.

        Raises:
            ApiError: it has no definition yet.
        """
        if plural not in CUSTOM:
            return None
        found = self.objects.find("customresourcedefinitions", "", CUSTOM[plural])
        if found is None:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        return found["spec"]["versions"][0]

    def admit(self, plural: str, document: Document, before: Document | None, *, strict: bool) -> Document:
        """Return an object as it is stored, with the status of the one before it.

        Args:
            strict: unknown fields are refused, and not dropped.
        """
        version = self.find_version(plural)
        if version is None:
            return document
        schema = version["schema"]["openAPIV3Schema"]
        unknown: list[str] = []
        own = {name: value for name, value in document.items() if name not in KEPT}
        admitted = admit_value(schema, own, "", unknown)
        if strict and unknown:
            fields = ", ".join(f'unknown field "{path}"' for path in unknown)
            raise ApiError(400, "BadRequest", f"strict decoding error: {fields}")
        admitted |= {name: document[name] for name in KEPT if name in document}
        admitted.pop("status", None)
        if before is not None and "status" in before:
            admitted["status"] = before["status"]
        wrong = list_errors(schema, admitted, before, "")
        if wrong:
            name = document["metadata"].get("name", "")
            kind = RESOURCES[plural].kind
            error = ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {"; ".join(wrong)}')
            # Clients print these.
            causes = [dict(zip(("field", "message"), one.split(": ", 1), strict=True)) for one in wrong]
            error.status["details"] = {"name": name, "kind": kind, "causes": causes}
            raise error
        generation = before["metadata"].get("generation", 0) if before else 0
        if before is None or admitted.get("spec") != before.get("spec"):
            generation += 1
        admitted["metadata"]["generation"] = generation
        return admitted

    def build_table(self, plural: str, documents: list[Document], version: str) -> Document:
        """Return a list as `kubectl get` prints it."""
        definition = self.find_version(plural)
        assert definition is not None
        columns = definition["additionalPrinterColumns"]
        rows = []
        for document in documents:
            cells = [document["metadata"]["name"], *(read_cell(document, column) for column in columns)]
            about = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
            rows.append({"cells": cells, "object": about | {"metadata": document["metadata"]}})
        shown = [{"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0}]
        shown += [
            {"name": column["name"], "type": column["type"], "format": "", "description": "", "priority": 0}
            for column in columns
        ]
        return {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": version},
            "columnDefinitions": shown,
            "rows": rows,
        }

    def build_scale(self, plural: str, document: Document) -> Document:
        paths = self._find_scale(plural)
        status = {"replicas": read_path(document, paths["statusReplicasPath"]) or 0}
        if selector := read_path(document, paths["labelSelectorPath"]):
            status["selector"] = selector
        kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {name: document["metadata"][name] for name in kept},
            "spec": {"replicas": read_path(document, paths["specReplicasPath"]) or 0},
            "status": status,
        }

    def scale(self, plural: str, document: Document, replicas: int) -> Document:
        """Return an object with another size."""
        *steps, last = self._find_scale(plural)["specReplicasPath"].strip(".").split(".")
        place = document
        for step in steps:
            place = place.setdefault(step, {})
        place[last] = replicas
        return document

    def _find_scale(self, plural: str) -> Document:
        version = self.find_version(plural)
        assert version is not None
        return version["subresources"]["scale"]


def admit_value(schema: Document, value: Any, path: str, unknown: list[str]) -> Any:
    """Return a value with its defaults, and without the fields that its schema does not know."""
    if isinstance(value, list):
        items = schema.get("items", {})
        return [admit_value(items, item, f"{path}[{i}]", unknown) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    fields, others = schema.get("properties", {}), schema.get("additionalProperties")
    keeps = schema.get("x-kubernetes-preserve-unknown-fields")
    found = {}
    for name, field in value.items():
        below = f"{path}.{name}".lstrip(".")
        if name in fields or others:
            found[name] = admit_value(fields.get(name) or others, field, below, unknown)
        elif keeps:
            found[name] = field
        else:
            unknown.append(below)
    for name, field in fields.items():
        if name not in found and "default" in field:
            found[name] = admit_value(field, field["default"], f"{path}.{name}", unknown)
    return found


def list_errors(schema: Document, value: Any, before: Any, path: str) -> list[str]:
    """Return all that a schema and its rules find wrong with a value."""
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return [f"{path}: Invalid value: {value!r}: must be of type {kind}"]
    wrong = list(_list_limits(schema, value, path))
    if isinstance(value, dict):
        wrong += [
            f"{path}.{name}: Required value" for name in schema.get("required", ()) if name not in value
        ]
        old = before if isinstance(before, dict) else {}
        for name, field in schema.get("properties", {}).items():
            if name in value:
                wrong += list_errors(field, value[name], old.get(name), f"{path}.{name}".lstrip("."))
    if isinstance(value, list):
        for i, item in enumerate(value):
            wrong += list_errors(schema.get("items", {}), item, None, f"{path}[{i}]")
    if not wrong:
        for rule in schema.get("x-kubernetes-validations", ()):
            if "oldSelf" in rule["rule"] and before is None:
                continue
            if not evaluate(rule["rule"], value, before):
                wrong.append(f"{path or '<nil>'}: Invalid value: {rule['message']}")
    return wrong


def _list_limits(schema: Document, value: Any, path: str) -> Any:
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: Unsupported value: {value!r}"
    if isinstance(value, int | float) and value < schema.get("minimum", value):
        yield f"{path}: Invalid value: {value}: should be greater than or equal to {schema['minimum']}"
    if isinstance(value, int | float) and value > schema.get("maximum", value):
        yield f"{path}: Invalid value: {value}: should be less than or equal to {schema['maximum']}"
    if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
        yield f"{path}: Too long: may not be more than {schema['maxLength']} bytes"
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{path}: Invalid value: should have at least {schema['minItems']} items"
        if len(value) > schema.get("maxItems", len(value)):
            yield f"{path}: Too many: must have at most {schema['maxItems']} items"


# -- rules: the part of CEL that our definition uses ---------------------------------------------------------


class Missing(Exception):
    """A rule reads a field that an object does not have: CEL calls this an error, and the API server too."""


class Fields:
    """An object in a rule."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def __getattr__(self, name: str) -> Any:
        if name not in self._document:
            raise Missing(name)
        return wrap(self._document[name])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fields) and self._document == other._document

    __hash__ = None


def wrap(value: Any) -> Any:
    return Fields(value) if isinstance(value, dict) else value


def evaluate(rule: str, value: Any, before: Any) -> bool:
    """Return whether a rule holds."""

    def has(read) -> bool:
        try:
            read()
        except Missing:
            return False
        return True

    names = {"has": has, "size": len, "own": wrap(value), "old": wrap(before), "__builtins__": {}}
    return bool(eval(translate(rule), names))  # noqa: S307 - our own rules


def translate(rule: str) -> str:
    """Return a rule as an expression of Python."""
    if (choice := re.fullmatch(r"([^?]+)\?([^:]+):(.+)", rule)) is not None:
        condition, yes, no = map(translate, choice.groups())
        return f"(({yes}) if ({condition}) else ({no}))"
    expression = re.sub(r"\boldSelf\b", "old", rule)
    expression = re.sub(r"\bself\b", "own", expression)
    expression = re.sub(r"has\(([\w.]+)\)", r"has(lambda: \1)", expression)
    expression = expression.replace("&&", " and ").replace("||", " or ")
    return re.sub(r"!(?!=)", " not ", expression).strip()


# -- columns -------------------------------------------------------------------------------------------------


def read_path(document: Document, path: str) -> Any:
    """Return the value at a path such as ``.status.step``, with a backslash before dots in names."""
    found: Any = document
    for step in re.split(r"(?<!\\)\.", path.removeprefix(".")):
        found = (found or {}).get(step.replace("\\", ""))
    return found


def read_cell(document: Document, column: Document) -> Any:
    found = read_path(document, column["jsonPath"])
    if column["type"] == "date" and found:
        return f"{int((now() - parse_time(found)).total_seconds())}s"
    # Empty cells are empty in what kubectl prints.
    return "" if found is None else found
