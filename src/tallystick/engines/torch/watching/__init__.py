"""What a loop computes in one step, seen below autograd and made a program."""
