"""Sessions end, and a token of one page is worth nothing for another."""

from elastane.cluster.dashboard.sessions import IDLE_S, MOST_SESSIONS, Sessions


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_page_token_is_good_for_one_path_of_one_session():
    sessions = Sessions()
    ada, eve = (sessions.find(sessions.begin("ela_x")) for _ in range(2))
    token = ada.make_page_token("/jobs/a/pause")
    assert ada.knows("/jobs/a/pause", token)
    assert not ada.knows("/jobs/b/pause", token)
    assert not eve.knows("/jobs/a/pause", token)
    assert not ada.knows("/jobs/a/pause", "\u00e9")


def test_an_idle_session_ends_and_a_used_one_goes_on():
    clock = Clock()
    sessions = Sessions(clock)
    secret = sessions.begin("ela_x")
    clock.now_s = IDLE_S - 1
    assert sessions.find(secret) is not None
    clock.now_s = 2 * IDLE_S - 2
    assert sessions.find(secret) is not None
    clock.now_s += IDLE_S + 1
    assert sessions.find(secret) is None


def test_the_longest_idle_session_gives_way():
    clock = Clock()
    sessions = Sessions(clock)
    first = sessions.begin("ela_first")
    for _ in range(MOST_SESSIONS):
        clock.now_s += 0.001
        newest = sessions.begin("ela_x")
    assert sessions.find(first) is None
    assert sessions.find(newest) is not None
