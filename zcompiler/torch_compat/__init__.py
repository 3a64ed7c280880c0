"""Every private torch API that zinf touches, in one place, for torch 2.11 to 2.14 (tested on 2.13.0)."""
