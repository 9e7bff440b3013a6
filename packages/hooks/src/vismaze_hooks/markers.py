"""The pluggy project name, which is also the entry-point group, and its two markers."""

import pluggy

PROJECT = "vismaze"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
