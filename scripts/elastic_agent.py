"""torchrun for scripts/elastic.sh, with two changes for which torchrun 2.11 has no option. Arguments are torchrun's.

- An agent that waits for other agents asks the store once a second and keeps the answer for a second: most of a restart. Here, 0.1 s.
- An agent that ends with an error, as after a cut cable, closes the rendezvous, and no host can join the run again. Here only an agent
  whose ranks are done closes it.

A torch without the names that are changed here is plain torchrun.
"""

import inspect
import sys

from torch.distributed.run import main

try:
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous
except ImportError:
    dynamic_rendezvous = None

SECONDS = 0.1


def ask_more_often() -> None:
    delay = getattr(dynamic_rendezvous, "_delay", None)
    holder = getattr(dynamic_rendezvous, "_BackendRendezvousStateHolder", None)
    if delay and holder and inspect.getfullargspec(holder.__init__).defaults == (1,):  # cache_duration
        dynamic_rendezvous._delay = lambda seconds: delay(SECONDS if seconds == 1 else seconds)
        holder.__init__.__defaults__ = (SECONDS,)


def leave_it_open() -> None:
    handler = getattr(dynamic_rendezvous, "DynamicRendezvousHandler", None)
    if close := getattr(handler, "shutdown", None):
        handler.shutdown = lambda self: close(self) if sys.exc_info()[0] is None else False


if __name__ == "__main__":
    ask_more_often()
    leave_it_open()
    sys.exit(main())
