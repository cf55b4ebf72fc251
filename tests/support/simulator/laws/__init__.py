"""Laws that look at what an accepted move has changed, said apart from the rules that let it."""
