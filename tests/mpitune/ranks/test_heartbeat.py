"""Who is silent, by one's own beats."""

from mpitune.ranks.heartbeat import BEATS, Silence


def test_silence_begins_with_the_first_word_and_lasts_for_some_beats() -> None:
    """A word that is read again is none."""
    silence = Silence()
    silence.beat()
    for who, word in ((1, None), ("job", 7.0)):
        silence.heard(who, word)
    for _ in range(BEATS - 1):
        silence.beat()
        silence.heard("job", 7.0)
    assert silence.silent() == []
    silence.beat()
    assert silence.silent() == [1, "job"]
    silence.heard("job", 8.0)
    assert silence.silent() == [1]
