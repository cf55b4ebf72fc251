"""One operator: its claimed results beside what its claimed operands allow."""
