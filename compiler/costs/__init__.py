"""What models cost: parameters, FLOPs, memory, state; tables, pictures and budgets of them."""
