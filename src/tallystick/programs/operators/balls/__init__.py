"""Running error analysis: the results of an operator, and a bound on the rounding error of any honest evaluation.

A ball is the exact result, computed in float64, and a radius. The radius of a primitive's result covers the effect of
the operands' radii, the rounding of the primitive itself, and the reference's own rounding. If a choice depends on
uncertain values (a comparison, an order, a float truncated to an integer), the ball covers every possible outcome. An
infinite radius means that there is no bound: an overflow in the nominal format is possible, or a divisor may be 0. An
infinity or a NaN with radius 0 means that every honest result is that infinity or a NaN.

Rules and derivations: docs/bounds.md; Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, §3.
"""
