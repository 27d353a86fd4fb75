"""The published sizes, constructed on the meta device, which holds no values."""

import inspect
from pathlib import Path

import pytest
import torch

from elastane.integrations.recipes.families import FAMILIES
from elastane.integrations.recipes.models import build_random_model
from elastane.integrations.recipes.recipe_files import list_recipes
from elastane.integrations.recipes.resolution import load_recipe

PARAMETERS = {
    "gpt-124m": 124_439_808,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
}
"""The numbers of parameters that the publishers of the models give."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_published_size_has_the_published_number_of_parameters(name):
    model = load_recipe(name, (), Path.cwd()).model
    with torch.device("meta"):
        built = build_random_model(model)
    assert sum(parameter.numel() for parameter in built.parameters()) == PARAMETERS[name]
    assert {parameter.dtype for parameter in built.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_of_the_catalog_writes_no_unknown_field_of_a_configuration(name):
    model = load_recipe(name, (), Path.cwd()).model
    assert model.config.keys() <= set(FAMILIES[model.family].fields)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_field_of_a_family_is_one_of_transformers(family):
    from transformers import AutoConfig

    kind = type(AutoConfig.for_model(FAMILIES[family].model_type))
    assert set(FAMILIES[family].fields) <= inspect.signature(kind).parameters.keys()
