#!/usr/bin/env python3
"""Judges Grafana dashboards by the types that Grafana publishes for programs that make them (grafana-foundation-sdk,
Apache-2.0): unknown fields, fields that must be there and are not, values of another type and unknown values of an
enumeration are faults, also in the options, fields and queries that belong to a panel's type.

    target/deploy-tools/bin/python tests/operations/judge-dashboard.py DASHBOARD...

Prints a line for each fault, and ends with 1 if there is any.
"""

import enum
import functools
import inspect
import json
import re
import sys
import types
import typing

from grafana_foundation_sdk.cog import plugins, runtime
from grafana_foundation_sdk.models import dashboard

PLAIN = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


@functools.cache
def fields(kind):
    """The fields of a type: the name in JSON, and the type of each. Only its reader says both names of a field."""
    named = re.findall(r'if "(\w+)" in data:.*?args\["(\w+)"\] =', inspect.getsource(kind.from_json), re.S)
    hints = typing.get_type_hints(kind)
    known = {name: hints[attribute] for name, attribute in named}
    # Set by the type itself, so its reader leaves it out.
    if "type_val" in hints:
        known.setdefault("type", hints["type_val"])
    return known


def judge(value, kind, at):
    """The faults of a value that should be of a type, each as (where, what)."""
    origin = typing.get_origin(kind)
    if kind in (typing.Any, object):
        return []
    if kind is type(None):
        return [] if value is None else [(at, "null is expected")]
    if origin in (typing.Union, types.UnionType):
        return judge_union(value, typing.get_args(kind), at)
    if origin is typing.Literal:
        allowed = typing.get_args(kind)
        return [] if value in allowed else [(at, f"{value!r} is none of {', '.join(map(repr, allowed))}")]
    if origin is list:
        if not isinstance(value, list):
            return [(at, f"a list is expected, and there is {value!r}")]
        (item,) = typing.get_args(kind)
        return [fault for place, one in enumerate(value) for fault in judge(one, item, f"{at}[{place}]")]
    if origin is dict or kind is dict:
        if not isinstance(value, dict):
            return [(at, f"an object is expected, and there is {value!r}")]
        item = (typing.get_args(kind) or (str, object))[1]
        return [fault for name, one in value.items() for fault in judge(one, item, f"{at}.{name}")]
    if kind in PLAIN:
        right = type(value) is kind or (kind is float and type(value) is int)
        return [] if right else [(at, f"{PLAIN[kind]} is expected, and there is {value!r}")]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        allowed = [member.value for member in kind]
        right = any(type(one) is type(value) and one == value for one in allowed)
        return [] if right else [(at, f"{value!r} is none of {', '.join(map(repr, allowed))}")]
    return judge_object(value, kind, at)


def judge_union(value, kinds, at):
    """Right if it is right as one of them. Otherwise the faults of the one that it comes nearest to."""
    if dashboard.RowPanel in kinds and isinstance(value, dict):
        kinds = [dashboard.RowPanel if value.get("type") == "row" else dashboard.Panel]
    tried = [judge(value, kind, at) for kind in kinds]
    if [] in tried:
        return []
    return max(tried, key=lambda faults: (len(faults[0][0]), -len(faults)))


def judge_object(value, kind, at):
    if not isinstance(value, dict):
        return [(at, f"an object is expected, and there is {value!r}")]
    known, faults = fields(kind), []
    for name, hint in known.items():
        if name not in value and type(None) not in typing.get_args(hint):
            faults.append((at, f"{name} is missing"))
    for name, one in value.items():
        where = f"{at}.{name}"
        if name not in known:
            faults.append((where, f"Grafana's {kind.__name__} has no such field"))
        elif kind is dashboard.Panel and name in ("options", "fieldConfig", "targets"):
            faults += judge_of_panel(value, name, where)
        else:
            faults += judge(one, known[name], where)
    return faults


def judge_of_panel(panel, name, at):
    """The keys of the type of the panel, and those of its data source."""
    value = panel[name]
    if name == "targets":
        source = panel.get("datasource")
        source = source.get("type") if isinstance(source, dict) else None
        config = runtime.Runtime().dataquery_variants.get(source)
        if config is None:
            return [(at, f"no data source of type {source!r} is known")]
        return judge(value, list[config.from_json_hook.__self__], at)
    config = runtime.panelcfg_config(panel.get("type", ""))
    if config is None:
        return [(at, f"no panel of type {panel.get('type')!r} is known")]
    if name == "options":
        return judge(value, config.options_from_json_hook.__self__, at)
    faults = judge(value, dashboard.FieldConfigSource, at)
    custom = value.get("defaults", {}).get("custom") if isinstance(value, dict) else None
    if custom is not None:
        hook = config.field_config_from_json_hook
        faults += judge(custom, hook.__self__ if hook else type(None), f"{at}.defaults.custom")
    return faults


def main(files):
    plugins.register_default_plugins()
    count = 0
    for file in files:
        with open(file, encoding="utf-8") as opened:
            board = json.load(opened)
        for where, what in judge(board, dashboard.Dashboard, "dashboard"):
            print(f"{file}: {where}: {what}")
            count += 1
    print(f"{len(files)} dashboards judged, {count} faults")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
