"""torchrun for scripts/elastic.sh, with two changes for which torchrun 2.11 has no option. Arguments are torchrun's.

- An agent that waits for other agents asks the store once a second and keeps the answer for a second: most of a restart. Here, 0.1 s.
- An agent that ends with an error, as after a cut cable, closes the rendezvous, and no host can join the run again. Here only an agent
  whose ranks are done closes it.

A torch without the names that are changed here is plain torchrun.
"""

import sys

from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.run import main

SECONDS = 0.1


def ask_more_often(handler: type) -> None:
    """During a rendezvous. While ranks run, once a second is enough, and costs them less."""
    delay, rendezvous = dynamic_rendezvous._delay, handler.next_rendezvous
    dynamic_rendezvous._delay = lambda seconds: delay(SECONDS if seconds == 1 else seconds)

    def next_rendezvous(self):
        holder = self._state_holder
        kept, holder._cache_duration = holder._cache_duration, SECONDS
        try:
            return rendezvous(self)
        finally:
            holder._cache_duration = kept

    handler.next_rendezvous = next_rendezvous


def leave_it_open(handler: type) -> None:
    close = handler.shutdown
    handler.shutdown = lambda self: close(self) if sys.exc_info()[0] is None else False


def change() -> None:
    handler = getattr(dynamic_rendezvous, "DynamicRendezvousHandler", None)
    holder = getattr(dynamic_rendezvous, "_BackendRendezvousStateHolder", None)
    if handler and holder and hasattr(dynamic_rendezvous, "_delay"):
        ask_more_often(handler)
        leave_it_open(handler)


if __name__ == "__main__":
    change()
    sys.exit(main())
