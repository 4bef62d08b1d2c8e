"""llama.cpp (its Python package) as a peer of the rows decode_int8 and decode_int4: a GGUF file of the same weights,
rounded in its own way (Q8_0, Q4_0: a scale for each 32 numbers), and one token a call behind length - 1 others. At
length 1, where nothing is rotated and nothing is seen but the token itself, its result is compared with Etch's."""
import ctypes, os, tempfile

import numpy

VOCABULARY = 32  # what the format asks for; tokens are given as embeddings
# As a block of bench/models.c asks for its weights; after the matrix of each product come what Etch made of it.
BLOCK = ("", "", "attn_norm", "attn_q", "", "", "attn_k", "", "", "attn_v", "", "", "", "", "attn_output", "", "",
         "ffn_norm", "ffn_gate", "", "", "ffn_up", "", "", "ffn_down", "", "")


def write(path, row, layers, width, heads):
    import gguf
    kinds = gguf.GGMLQuantizationType
    kind = kinds.Q8_0 if row.name == "decode_int8" else kinds.Q4_0
    file = gguf.GGUFWriter(path, "llama")
    file.add_block_count(layers)
    file.add_context_length(4096)
    file.add_embedding_length(width)
    file.add_feed_forward_length(row.weights[BLOCK.index("ffn_up")].shape[0])
    file.add_head_count(heads)
    file.add_head_count_kv(heads)
    file.add_rope_dimension_count(width // heads)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_vocab_size(VOCABULARY)
    file.add_tokenizer_model("no_vocab")
    nothing = numpy.zeros((VOCABULARY, width), numpy.float32)
    file.add_tensor("token_embd.weight", nothing)
    file.add_tensor("output.weight", nothing)
    file.add_tensor("output_norm.weight", row.weights[-1].numpy())
    for i in range(layers):
        for k, name in enumerate(BLOCK):
            w = row.weights[i * len(BLOCK) + k].numpy() if name else None
            if name.endswith("norm"):
                file.add_tensor(f"blk.{i}.{name}.weight", w)
            elif name:
                file.add_tensor(f"blk.{i}.{name}.weight", gguf.quants.quantize(w, kind), raw_dtype=kind)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def context_of(api, model, threads):
    options = api.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch = 4096, 512, 512
    options.n_threads = options.n_threads_batch = threads
    options.embeddings, options.pooling_type = True, api.LLAMA_POOLING_TYPE_NONE
    context = api.llama_init_from_model(model, options)
    if not context:
        raise RuntimeError("llama.cpp makes no context")
    return context


class Decoder:
    """One token a call, at the same place each time."""

    def __init__(self, path, row, width, threads):
        import llama_cpp
        self.api, self.width, self.place = llama_cpp, width, row.length - 1
        self.x = row.x.numpy().reshape(1, width)
        llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        self.context = context_of(llama_cpp, self.model, threads)
        if self.place:
            self.fill(path, threads)

    def fill(self, path, threads):
        """Keys and values of what is before the token, from a model whose weights are not packed for AMX: products of
        many rows by those end with an illegal instruction in builds where the compiler has dropped the configuration
        of the tiles. Those of one row, which are measured, do not use tiles."""
        api, fast = self.api, self.context
        options = api.llama_model_default_params()
        options.use_extra_bufts = False
        model = api.llama_model_load_from_file(path.encode(), options)
        self.context = context_of(api, model, threads)
        before = numpy.random.default_rng(0).standard_normal((self.place, self.width), numpy.float32)
        for at in range(0, self.place, 512):
            self.decode(before[at:at + 512], at)
        size = api.llama_state_seq_get_size(self.context, 0)
        state = (ctypes.c_uint8 * size)()
        api.llama_state_seq_get_data(self.context, state, size, 0)
        if not api.llama_state_seq_set_data(fast, state, size, 0):
            raise RuntimeError("llama.cpp does not take over the keys and values")
        api.llama_free(self.context)
        api.llama_model_free(model)
        self.context = fast

    def decode(self, rows, place):
        api, n = self.api, len(rows)
        rows = numpy.ascontiguousarray(rows)
        batch = api.llama_batch_init(n, self.width, 1)
        ctypes.memmove(batch.embd, rows.ctypes.data, rows.nbytes)
        batch.n_tokens = n
        for i in range(n):
            batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = place + i, 1, 0, i == n - 1
        status = api.llama_decode(self.context, batch)
        api.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode: {status}")

    def __call__(self):
        self.decode(self.x, self.place)
        y = self.api.llama_get_embeddings_ith(self.context, -1)
        y = numpy.ctypeslib.as_array(y, (self.width,)).reshape(1, 1, self.width).copy()
        self.api.llama_memory_seq_rm(self.api.llama_get_memory(self.context), 0, self.place, -1)
        return y


def quiet_log(level, text, data):
    pass


quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(quiet_log)


def llama_way(row, layers, width, heads, threads):
    path = os.path.join(tempfile.mkdtemp(), "model.gguf")
    write(path, row, layers, width, heads)
    decoder = Decoder(path, row, width, threads)
    os.remove(path)
    return decoder
