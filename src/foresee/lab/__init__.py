"""What a researcher runs: experiments, their store, their report. The library never imports it."""
