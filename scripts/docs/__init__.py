"""What the documents take from the code: reference pages and the chart; ``python -m scripts.docs`` writes them."""
