"""A local reward plugin for tests: pays for answers that an untrained model gives now and then."""

from vismaze_hooks import hookimpl


@hookimpl
def vismaze_rewards():
    return {"short_answers": lambda: lambda transition: float(len(transition.answer) % 2)}
