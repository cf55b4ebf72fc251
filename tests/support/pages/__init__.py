"""Pages of documentation that run: every block as it is written, in a fresh folder, with the installed `tally`.

A block is fenced and stands at the beginning of a line. What it is, its fence says:

* ```` ```sh ````: one paste into a terminal. Each of its commands must end well. One terminal is one bash process: `cd`
  and variables hold from block to block.
* ```` ```python ````: one paste into `python -`, or a file, with the note `file` above it.
* ```` ```toml ````, ```` ```json ````: a file, with the note `file` above it.
* ```` ```text ````: what the block before it printed to stdout. Digests, seconds, dates, ports and versions may differ
  (`showing.py` says which text is masked), and so may spaces. `…` stands for anything, on a line of its own for lines.

Notes stand directly above the fence, one per line. A reader of the rendered page sees these:

* ``**File `train.py`:**``: write the block into this file.
* ``**A second terminal, `lab`:**``, and later ``**Terminal `lab`:**``: the terminal in which it runs, or whose output
  it shows; without it, the terminal `main`.
* ``**Exit code 1:**``: the exit code of its last command; those before it end well.

and does not see these:

* `<!-- until: listening on -->`: the block runs on in its terminal, and the page goes on as soon as the terminal shows
  this text. The next block of this terminal waits for its end, and so does `text`, until what it shows is there. At the
  end of the page it is stopped.
* `<!-- stream: stderr -->`: a `text` block shows stderr.
* `<!-- needs: vllm -->`: the block is left out where the clone has no environment with vLLM (`make vllm`), and the
  runner says so. A page with such blocks finds the clone as the folder `tallystick`.

`python -m tests.support.pages PAGE` runs one page and prints the seconds of each block; `--write` puts the real output
into its `text` blocks.
"""
