"""Roles, and what a key may do by them."""

from __future__ import annotations

import pytest

from inferflux.common.contract.callers.scopes import SCOPES, Scope, expanded
from inferflux.common.contract.errors import InvalidArgument, PermissionDenied
from inferflux.policy.decide import roles
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.decide.roles import (
    BUILTIN,
    Access,
    Role,
    access_of,
    check_may_give_pools,
    check_may_give_priority,
    check_may_manage,
)


def key(*scopes: str, models: tuple[str, ...] = ()) -> ApiKeyRecord:
    return ApiKeyRecord("0f" * 32, "acme", "ci", scopes, 1, models=models)


def test_every_scope_is_explained() -> None:
    assert list(SCOPES) == list(Scope)


def test_admin_includes_what_operators_do_and_neither_answers_nor_models() -> None:
    assert expanded([Scope.ADMIN]) == set(Scope) - {Scope.INFERENCE, Scope.MODELS}


def test_a_role_survives_being_written_and_read() -> None:
    role = Role("ours", (Scope.INFERENCE,), models=("ä*",), description="für uns", version=3)
    assert Role.from_json("ours", role.to_json()) == role


def test_scopes_of_a_key_and_its_roles_add_up() -> None:
    access = access_of(key("models"), [Role("a", ("status",)), Role("b", ("policy",))])
    assert access.scopes == {"models", "status", "policy", "policy:read"}
    assert access.models == ()


@pytest.mark.parametrize(
    ("of_key", "of_roles", "models"),
    [
        ((), [()], ("*",)),
        ((), [("demo",)], ("demo",)),
        ((), [("demo",), ("other*",)], ("demo", "other*")),
        ((), [("demo",), ()], ("demo", "*")),
        (("demo*",), [("demo-2", "other")], ("demo-2",)),
        (("demo-2",), [("demo*",)], ("demo-2",)),
    ],
)
def test_a_role_gives_inference_for_its_models_within_those_of_the_key(
    of_key: tuple[str, ...], of_roles: list[tuple[str, ...]], models: tuple[str, ...]
) -> None:
    given = [Role(f"r{i}", (Scope.INFERENCE,), models=m) for i, m in enumerate(of_roles)]
    access = access_of(key(models=of_key), given)
    assert access.models == models
    assert Scope.INFERENCE in access.scopes


def test_inference_for_no_model_is_no_inference() -> None:
    access = access_of(key("models", models=("demo",)), [Role("a", (Scope.INFERENCE,), models=("other",))])
    assert access == Access(frozenset({Scope.MODELS}), ())


def test_an_administrator_manages_everything() -> None:
    check_may_manage(Access(expanded(["admin"]), ()), Access(frozenset(Scope), ("*",)))


def test_others_manage_what_they_have_themselves() -> None:
    actor = Access(expanded(["policy", "inference"]), ("*",))
    check_may_manage(actor, Access(expanded(["inference", "policy:read"]), ("*",)))
    for beyond in ("admin", "models", "cluster"):
        with pytest.raises(PermissionDenied, match=beyond) as caught:
            check_may_manage(actor, Access(expanded(["inference"]), ()), Access(expanded([beyond]), ()))
        assert caught.value.reason == "BEYOND_OWN_SCOPES"


@pytest.mark.parametrize(
    ("own", "given"),
    [
        (("demo",), ("*",)),
        (("demo",), ("demo*",)),
        (("demo*",), ("demo-2", "other")),
        (("a", "b"), ("a", "c")),
    ],
)
def test_others_give_no_models_that_they_may_not_use(own: tuple[str, ...], given: tuple[str, ...]) -> None:
    actor = Access(expanded(["policy", "inference"]), own)
    with pytest.raises(PermissionDenied, match="may only use") as caught:
        check_may_manage(actor, Access(expanded(["inference"]), given))
    assert caught.value.reason == "BEYOND_OWN_SCOPES"
    check_may_manage(actor, Access(expanded(["inference"]), own), Access(expanded(["policy"]), ("*",)))


def test_others_give_no_higher_priority_than_they_have() -> None:
    actor = Access(expanded(["policy", "inference"]), ("*",))
    check_may_give_priority(actor, own=4, given=4)
    with pytest.raises(PermissionDenied, match="max_priority 4") as caught:
        check_may_give_priority(actor, own=4, given=5)
    assert caught.value.reason == "BEYOND_OWN_SCOPES"
    check_may_give_priority(Access(expanded(["admin"]), ()), own=4, given=100)


def test_others_give_no_workers_of_other_pools() -> None:
    actor = Access(expanded(["policy", "inference"]), ("*",))
    for own, given in (("", ""), ("", "gold"), ("gold", "gold"), ("gold silver", "silver")):
        check_may_give_pools(actor, own=own.split(), given=given.split())
    for beyond in ("", "silver", "gold silver"):
        with pytest.raises(PermissionDenied, match="worker pools gold") as caught:
            check_may_give_pools(actor, own=("gold",), given=beyond.split())
        assert caught.value.reason == "BEYOND_OWN_SCOPES"
    check_may_give_pools(Access(expanded(["admin"]), ()), own=("gold",), given=())


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "a" * 64, "a*"])
def test_a_roles_name_may_not_be(name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        roles.parse_role_names(["user", name])
    assert caught.value.field == "roles[1]"


@pytest.mark.parametrize("text", ["two\nlines", "d" * 257])
def test_a_description_may_not_be(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        roles.parse_description(text, field="role.description")
    assert caught.value.field == "role.description"


def test_the_roles_of_every_inferflux_have_names_that_can_be_given() -> None:
    assert roles.parse_role_names(BUILTIN) == tuple(BUILTIN)
    assert all(role.is_builtin and role.version == 0 and role.description for role in BUILTIN.values())
