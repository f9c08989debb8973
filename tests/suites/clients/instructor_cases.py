"""Instructor: answers as objects of pydantic."""

from __future__ import annotations

import os

import instructor
import openai
import pydantic
import pytest

ASK = [{"role": "user", "content": "Name: Paul, age: 9. Give it as JSON."}]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int


@pytest.mark.parametrize("mode", ["JSON", "JSON_SCHEMA", "TOOLS", "TOOLS_STRICT", "MD_JSON"])
def test_mode(mode):
    client = instructor.from_openai(openai.OpenAI(max_retries=0), mode=instructor.Mode[mode])
    try:
        made = client.chat.completions.create(
            model=os.environ["SUITE_MODEL"],
            messages=ASK,
            response_model=Person,
            max_retries=0,
            max_tokens=120,
        )
    except Exception as error:
        if mode == "MD_JSON" and not isinstance(error.__cause__ or error, openai.APIError):
            pytest.skip("nothing holds the model to JSON in this mode")
        raise
    assert isinstance(made, Person)
