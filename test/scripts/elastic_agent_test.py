"""scripts/elastic_agent.py changes what it means to change in the torchrun that is installed."""

import pathlib
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
try:
    import elastic_agent
    from torch.distributed import HashStore
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous as rendezvous
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
except ImportError:
    elastic_agent = None


@unittest.skipUnless(elastic_agent, "needs the Python torch")
class ElasticAgent(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        elastic_agent.ask_more_often()
        elastic_agent.leave_it_open()

    def setUp(self):
        store = HashStore()
        self.handler = rendezvous.DynamicRendezvousHandler.from_backend("run", store, C10dRendezvousBackend(store, "run"), 1, 2, "here")

    def test_an_agent_asks_ten_times_a_second(self):
        start = time.monotonic()
        rendezvous._delay(seconds=1)
        self.assertLess(time.monotonic() - start, 0.9)
        self.assertEqual(self.handler._state_holder._cache_duration, 0.1)

    def test_other_delays_are_as_they_were(self):
        start = time.monotonic()
        rendezvous._delay(seconds=(0.2, 0.3))
        self.assertGreaterEqual(time.monotonic() - start, 0.2)

    def test_an_agent_that_is_done_closes_the_rendezvous(self):
        self.assertTrue(self.handler.shutdown())
        self.assertTrue(self.handler.is_closed())

    def test_one_that_ends_with_an_error_does_not(self):
        with self.assertRaises(ConnectionError):
            try:
                raise ConnectionError
            finally:
                self.handler.shutdown()
        self.assertFalse(self.handler.is_closed())


if __name__ == "__main__":
    unittest.main()
