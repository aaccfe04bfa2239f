"""Lettering on pictures of brains."""

from __future__ import annotations

from heatlas.reports.figures.gallery import font


def test_names_of_maps_are_written_with_letters_and_not_with_boxes():
    """A letter that a font lacks is drawn as the same box as any other it lacks."""
    letters = font(11)
    box = bytes(letters.getmask("\uffff"))
    for letter in "β²ö=":
        assert bytes(letters.getmask(letter)) != box
