"""Finding plugins, asking them once what they offer, and telling them what happens."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from vismaze_hooks import specs
from vismaze_hooks.markers import PROJECT
from vismaze_hooks.names import nearest, pick

OFFERS = {
    "environment": "vismaze_environments",
    "observation": "vismaze_observations",
    "reward": "vismaze_rewards",
    "generator": "vismaze_generators",
    "checkpoint backend": "vismaze_checkpoint_backends",
    "engine": "vismaze_engines",
    "tracker": "vismaze_trackers",
}
EVENTS = ("vismaze_run_started", "vismaze_step_finished", "vismaze_run_finished")

log = logging.getLogger(PROJECT)
_loading = 0  # depth of `load_plugins`: a plugin's import may import a package that asks for plugins itself
_waiting: list[Callable[[Plugins], None]] = []
_current: Plugins | None = None


class DuplicateNameError(ValueError):
    """Two plugins claim one name; the message names both owners."""


class PluginWarning(UserWarning):
    """A plugin could not be used. The others work."""


@dataclass(frozen=True)
class Problem:
    """A plugin that could not be used, and why in one line."""

    plugin: str
    origin: str  # distribution and version, or the file
    error: str  # the traceback's last line


@dataclass
class Plugins:
    """What is installed. Built once per process; not meant to be pickled (each process builds its own)."""

    manager: pluggy.PluginManager
    origins: Mapping[str, str]  # plugin name -> where it came from
    offers: Mapping[str, Mapping[str, Callable[..., Any]]]  # kind -> name -> factory
    owners: Mapping[tuple[str, str], str]  # (kind, name) -> plugin name
    problems: tuple[Problem, ...]
    folder: Path  # where local files were looked for
    failures: Counter[str] = field(default_factory=Counter)  # event listeners that raised, by plugin

    def create(self, kind: str, name: str, options: Mapping[str, Any] | None = None) -> Any:
        """Make the named thing with the options of the configuration.

        Args:
            kind: one of `OFFERS`, such as "reward".

        Raises:
            UnknownNameError: nothing of this kind has this name; lists what is installed and suggests the nearest.
            ValueError: the factory does not take these options; names the owner, and what it would take where its signature
                says so.
        """
        broken = "".join(f" Plugin {p.plugin!r} could not be loaded: {p.error}." for p in self.problems)
        factory = pick(kind, name, self.offers[kind], broken)
        try:
            return factory(**(options or {}))
        except TypeError as error:
            refused = f"{kind} {name!r} (from plugin {self.owners[kind, name]!r}) refused its options {options}: {error}"
            raise ValueError(refused + _options_of(factory, options or {})) from error

    def emit(self, event: str, **arguments: Any) -> list[Problem]:
        """Tell every listener; one that fails is logged with its traceback and counted, and the run goes on."""
        failed = []
        for implementation in getattr(self.manager.hook, event).get_hookimpls():
            try:
                implementation.function(*(arguments[name] for name in implementation.argnames))
            except Exception as error:
                name = implementation.plugin_name
                self.failures[name] += 1
                log.error("plugin %r failed in %s", name, event, exc_info=error)
                failed.append(Problem(name, self.origins.get(name, "?"), last_line(error)))
        return failed


def _options_of(factory: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """Return the end of an error: what is nearest to a wrong name, and the options; empty for a factory that takes any name."""
    parameters = inspect.signature(factory).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return ""
    hint = "".join(nearest(option, list(parameters)) for option in given if option not in parameters)
    return f".{hint} Options: {', '.join(parameters) or 'none'}."


def load_plugins(local: Sequence[str] = (), *, folder: Path | None = None) -> Plugins:
    """Find every plugin of the entry-point group `vismaze`, plus local files or modules.

    Args:
        local: names of modules, or of Python files (with or without ".py") relative to `folder`.
        folder: where local files are looked for; the working directory by default.

    Raises:
        DuplicateNameError: two entry points of one name (pluggy would skip the second without a word), or one name
            offered twice; names both owners.
        ModuleNotFoundError: a local plugin was not found. Local plugins are asked for by name, so their failures raise.
    """
    global _loading, _current
    _loading += 1
    try:
        plugins = _load(local, folder or Path.cwd())
    finally:
        _loading -= 1
    _current = plugins
    if not _loading:
        while _waiting:
            _waiting.pop(0)(plugins)
    return plugins


def current_plugins() -> Plugins:
    """Return what this process loaded last, local plugins included; loads the installed ones when nothing was."""
    return _current if _current is not None else load_plugins()


def when_loaded(listener: Callable[[Plugins], None]) -> None:
    """Call the listener with the installed plugins: now, or, when plugins are just being imported, once they all are."""
    if _loading:
        _waiting.append(listener)
    else:
        listener(current_plugins())


def _load(local: Sequence[str], folder: Path) -> Plugins:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(specs)
    origins: dict[str, str] = {}
    problems: list[Problem] = []
    for point in _entry_points():
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        try:
            _register(manager, point.load(), point.name)
            origins[point.name] = origin
        except Exception as error:  # noqa: BLE001 — a broken plugin must not hide the others; it is reported
            problems.append(_report(point.name, origin, error))
    for name in local:
        module = _local_module(name, folder)
        _register(manager, module, module.__name__)
        origins[module.__name__] = str(module.__file__)
    offers, owners, failed = _ask(manager, origins)
    return Plugins(manager, origins, offers, owners, tuple(problems + failed), folder)


def last_line(error: BaseException) -> str:
    """Return the last line of an error's traceback: "ImportError: no such thing"."""
    return traceback.format_exception_only(error)[-1].strip()


def _entry_points() -> list[importlib.metadata.EntryPoint]:
    points: dict[str, importlib.metadata.EntryPoint] = {}
    for point in importlib.metadata.entry_points(group=PROJECT):
        other = points.setdefault(point.name, point)
        if other.value != point.value or _owner(other) != _owner(point):
            raise DuplicateNameError(
                f"two plugins have the entry point {point.name!r}: {_owner(other)} ({other.value}) and "
                f"{_owner(point)} ({point.value}). Uninstall one of them or rename its entry point."
            )
    return [points[name] for name in sorted(points)]


def _owner(point: importlib.metadata.EntryPoint) -> str:
    return f"distribution {point.dist.name!r}" if point.dist else "an unknown distribution"


def _register(manager: pluggy.PluginManager, plugin: Any, name: str) -> None:
    bare = [
        key
        for key, value in vars(plugin).items()
        if key.startswith("vismaze_") and callable(value) and not hasattr(value, f"{PROJECT}_impl")
    ]
    if bare:
        raise ValueError(f"{bare[0]} in {name!r} is not marked with @vismaze_hooks.hookimpl, so it would never be called")
    manager.register(plugin, name)
    try:
        manager.check_pending()  # a misspelt hook would otherwise be silent
    except pluggy.PluginValidationError:
        manager.unregister(name=name)
        raise


def _local_module(name: str, folder: Path) -> ModuleType:
    file = folder / (name if name.endswith(".py") else f"{name}.py")
    if not file.is_file():
        if name.endswith(".py") or importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"local plugin {name!r}: neither the file {file} nor a module of this name exists")
        return importlib.import_module(name)
    module_name = file.stem
    loaded = sys.modules.get(module_name)
    if loaded is not None and Path(str(loaded.__file__)).resolve() == file.resolve():
        return loaded
    found = importlib.util.find_spec(module_name)
    if found is not None and found.origin is not None and Path(found.origin).resolve() == file.resolve():
        return importlib.import_module(module_name)  # its folder is on the path, as the working directory often is
    if found is not None:
        raise DuplicateNameError(f"local plugin {file} has the name of an installed module {module_name!r}; rename the file")
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # so that what it defines can be pickled
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _ask(
    manager: pluggy.PluginManager, origins: Mapping[str, str]
) -> tuple[dict[str, dict[str, Callable[..., Any]]], dict[tuple[str, str], str], list[Problem]]:
    offers: dict[str, dict[str, Callable[..., Any]]] = {kind: {} for kind in OFFERS}
    owners: dict[tuple[str, str], str] = {}
    problems = []
    for kind, hook in OFFERS.items():
        for implementation in sorted(getattr(manager.hook, hook).get_hookimpls(), key=lambda i: i.plugin_name):
            plugin = implementation.plugin_name
            try:
                offered = dict(implementation.function())
            except Exception as error:  # noqa: BLE001 — as for imports: reported, the others work
                problems.append(_report(plugin, origins.get(plugin, "?"), error))
                continue
            for name, factory in offered.items():
                if (kind, name) in owners:
                    both = " and ".join(f"{p!r} ({origins.get(p, '?')})" for p in (owners[kind, name], plugin))
                    raise DuplicateNameError(f"{kind} {name!r} is offered twice: by the plugins {both}. Remove one of them.")
                offers[kind][name] = factory
                owners[kind, name] = plugin
    return offers, owners, problems


def _report(plugin: str, origin: str, error: BaseException) -> Problem:
    problem = Problem(plugin, origin, last_line(error))
    warnings.warn(f"plugin {plugin!r} ({origin}) cannot be used: {problem.error}", PluginWarning, stacklevel=3)
    return problem
