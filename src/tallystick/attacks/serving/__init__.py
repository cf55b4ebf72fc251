"""Ways to serve a language model that is not the promised one, or not as promised, and honest ways beside them."""
