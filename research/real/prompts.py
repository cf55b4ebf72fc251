"""Questions that no calibration has seen."""

from __future__ import annotations

from typing import Final

QUESTIONS: Final = (
    "Why is the sky blue during the day and red at sunset?",
    "Write a letter to a friend about a walk in the mountains.",
    "Name the planets of the solar system and one fact about each of them.",
    "How do I fix a flat tyre on the road?",
    "Write a Python class for a bank account with deposit and withdrawal.",
    "Explain the difference between a stack and a queue.",
    "What happened during the French Revolution?",
    "Give me three ideas for a birthday party at home.",
    "Translate into Spanish: I would like to book a table for two people.",
    "Compute the area of a circle with a radius of 7 centimetres, step by step.",
    "Write a review of a restaurant that serves only soup.",
    "What are the symptoms of dehydration?",
    "Explain what a mortgage is to someone who has never had one.",
    "Write a long story about a clockmaker who can stop time.",
    "How does a vaccine work?",
    "List the steps to publish a book.",
    "Which animals sleep in winter, and why?",
    "Write a limerick about a cat and a printer.",
    "Explain how a hash table works and when it is slow.",
    "What is the difference between weather and climate?",
    "Write a job advertisement for a gardener.",
    "How can a beginner train for a race of ten kilometres?",
    "Describe the taste of a lemon to someone who has never eaten one.",
    "Who was Marie Curie?",
    "Write JavaScript that reverses a string without built-in functions.",
    "Why do leaves change their colour in autumn?",
    "Summarise the plot of Romeo and Juliet.",
    "What does a compiler do? Answer briefly.",
    "Tell me everything you know about volcanoes.",
    "Write an argument for and an argument against school uniforms.",
)
