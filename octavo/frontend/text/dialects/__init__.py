"""How families of models write their thoughts and their calls of tools: one small record each, one streaming engine."""
