"""All metrics, each by its kind."""

from corellm_vllm import LLM, SamplingParams
from corellm_vllm.v1.metrics.reader import Counter, Gauge, Histogram, Vector

llm = LLM(model="demo", disable_log_stats=False)
llm.generate(["Hello, I am"], SamplingParams(max_tokens=4))
for metric in llm.get_metrics():
    if isinstance(metric, Gauge):
        print(f"{metric.name} (gauge) = {metric.value}")
    elif isinstance(metric, Counter):
        print(f"{metric.name} (counter) = {metric.value}")
    elif isinstance(metric, Vector):
        print(f"{metric.name} (vector) = {metric.values}")
    elif isinstance(metric, Histogram):
        print(f"{metric.name} (histogram) sum = {metric.sum}, count = {metric.count}")
