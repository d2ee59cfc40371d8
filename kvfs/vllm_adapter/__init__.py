"""kvfs as a secondary tier of vLLM; the only package that imports vllm or torch.

`plugin` registers it, `tier` is what vLLM calls, `translate` turns jobs and results, `lookup` keeps
verdicts, `spec` and `cpu_worker` let the whole path run on the CPU platform, `compat` knows versions.
"""
