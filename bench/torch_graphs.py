"""CUDA graphs under PyTorch, as its manual has them."""
import torch


def marked(call, mode):
    """A call in torch.compile's mode: reduce-overhead wants to be told when the results of the call before are done
    with."""
    def marks(*args):
        torch.compiler.cudagraph_mark_step_begin()
        return call(*args)
    return marks if mode == "reduce-overhead" else call


def captured(work):
    """A replay of one CUDA graph of work, as PyTorch's notes on CUDA graphs have it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()

    def replay():
        graph.replay()
        return result

    replay.done = 3  # calls before
    replay.work = work  # whose tensors the graph reads and writes
    return replay
