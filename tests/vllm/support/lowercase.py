"""A local reward plugin for tests: pays for answers that begin with a small letter, which any model gives now and then."""

from vismaze_hooks import hookimpl


@hookimpl
def vismaze_rewards():
    return {"lowercase": lambda: lambda transition: float(transition.answer[:1].islower())}
