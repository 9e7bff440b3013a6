"""A reward that an untrained model gets now and then; `pay` is looked up at every call, so that a campaign can watch it."""

from vismaze_hooks import hookimpl


def pay(transition):
    return float(len(transition.answer) % 2)


@hookimpl
def vismaze_rewards():
    return {"faults": lambda: lambda transition: pay(transition)}
