"""Running error analysis: the results of an operator, and a bound on the rounding error of any honest evaluation.

A ball is the exact result, computed in float64, and a radius. Of every primitive, the radius of the result covers what
the radii of the operands can do to it and the rounding of the primitive itself; the reference's own rounding counts as
that of one more evaluation. Where a choice depends on uncertain values (comparison, order, whole numbers cut from
floats), both outcomes stay possible. A radius is infinite where nothing is promised: an overflow in the nominal format
is possible, or a divisor may be 0. Radius 0 beside an infinity or a NaN promises just that.

Rules and derivations: docs/bounds.md; Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, §3.
"""
