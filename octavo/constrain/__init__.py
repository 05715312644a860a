"""What an answer's form may be: grammars, and the masks of tokens that follow from them."""
