"""How a verdict is shown: lines of text, and a page with its plot; nothing here judges."""
