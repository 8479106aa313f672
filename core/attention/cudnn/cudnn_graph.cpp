#include "core/attention/cudnn/cudnn_graph.h"

#include <cudnn_frontend.h>

#include <cmath>

#include "core/base/error.h"

namespace pptrain::attention {
namespace {

namespace fe = cudnn_frontend;
using TensorRef = std::shared_ptr<fe::graph::Tensor_attributes>;

void check(fe::error_t status) {
  if (status.is_bad()) throw Error("cuDNN attention: " + status.get_message());
}

int64_t number(CudnnUid uid) {
  return static_cast<int64_t>(uid);
}

// A graph under construction, and the tensors that both passes name alike.
class GraphMaker {
 public:
  GraphMaker(const CudnnSizes& sizes, CudnnPass pass, const CudnnTarget& target)
      : z_(sizes),
        target_(target),
        heads_(sizes.heads / sizes.parts(pass)),
        kv_heads_(sizes.kv_heads / sizes.parts(pass)),
        graph_(std::make_shared<fe::graph::Graph>()) {
    if (target.handle == nullptr) {
      graph_->set_sm_version(target.capability).set_device_properties(target.properties);
    }
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  fe::graph::Graph& operator*() { return *graph_; }

  TensorRef query(CudnnUid uid, HeadLayout layout, CudnnUid offsets) {
    return input(uid, heads_, layout, offsets);
  }
  TensorRef key(CudnnUid uid, HeadLayout layout, CudnnUid offsets) {
    return input(uid, kv_heads_, layout, offsets);
  }
  TensorRef logsumexp() {
    const TensorRef x = graph_->tensor(fe::graph::Tensor_attributes());
    describe_logsumexp(x);
    return x;
  }

  // Results of the graph: of the query's heads, and of the key's.
  void describe_query(const TensorRef& x, CudnnUid uid, HeadLayout layout, CudnnUid offsets) {
    describe(x, uid, heads_, layout, offsets);
  }
  void describe_key(const TensorRef& x, CudnnUid uid, HeadLayout layout, CudnnUid offsets) {
    describe(x, uid, kv_heads_, layout, offsets);
  }
  void describe_logsumexp(const TensorRef& x) {
    const int64_t heads = heads_, rows = z_.shape.longest;
    x->set_uid(number(CudnnUid::logsumexp))
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({z_.shape.documents, heads, rows, 1});
    if (z_.shape.ragged) {
      x->set_stride({heads * rows, 1, heads, 1});
      x->set_ragged_offset(index(CudnnUid::logsumexp_offsets, z_.shape.documents + 1));
    } else {
      x->set_stride({heads * rows, rows, 1, 1});
    }
  }

  // Options of both passes: causal, scaled, each document by its own length.
  template <class Options>
  Options options() {
    Options o;
    o.set_name("attention")
        .set_attn_scale(static_cast<float>(1 / std::sqrt(static_cast<double>(z_.head_dim))))
        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    if (z_.shape.ragged) {
      o.set_padding_mask(true)
          .set_seq_len_q(index(CudnnUid::q_lengths, z_.shape.documents))
          .set_seq_len_kv(index(CudnnUid::k_lengths, z_.shape.documents));
    }
    return o;
  }

  CudnnGraph finish() {
    const std::vector<fe::HeurMode_t> modes{fe::HeurMode_t::A};
    check(target_.handle == nullptr ? graph_->build(modes) : graph_->build(target_.handle, modes));
    return graph_;
  }

 private:
  // As [documents, heads, length, head_dim].
  std::vector<int64_t> dims(int64_t heads) const {
    return {z_.shape.documents, heads, z_.shape.longest, z_.head_dim};
  }
  // The first is not used if documents are ragged.
  std::vector<int64_t> strides(HeadLayout layout) const {
    return {z_.shape.longest * layout.token, layout.head, layout.token, 1};
  }

  void describe(const TensorRef& x, CudnnUid uid, int64_t heads, HeadLayout layout, CudnnUid offsets) {
    x->set_output(true).set_uid(number(uid)).set_dim(dims(heads)).set_stride(strides(layout));
    if (z_.shape.ragged) x->set_ragged_offset(index(offsets, z_.shape.documents + 1));
  }

  TensorRef input(CudnnUid uid, int64_t heads, HeadLayout layout, CudnnUid offsets) {
    const TensorRef x = graph_->tensor(
        fe::graph::Tensor_attributes().set_uid(number(uid)).set_dim(dims(heads)).set_stride(strides(layout)));
    if (z_.shape.ragged) x->set_ragged_offset(index(offsets, z_.shape.documents + 1));
    return x;
  }

  // int32 [count], one for each uid.
  TensorRef index(CudnnUid uid, int64_t count) {
    TensorRef& x = indices_[number(uid)];
    if (!x) {
      x = graph_->tensor(fe::graph::Tensor_attributes()
                             .set_uid(number(uid))
                             .set_dim({count, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(fe::DataType_t::INT32));
    }
    return x;
  }

  const CudnnSizes& z_;
  const CudnnTarget& target_;
  int64_t heads_, kv_heads_;  // of one run
  CudnnGraph graph_;
  std::unordered_map<int64_t, TensorRef> indices_;
};

}  // namespace

std::vector<std::pair<CudnnUid, int64_t>> ragged_strides(const CudnnSizes& z, CudnnPass pass) {
  std::vector<std::pair<CudnnUid, int64_t>> strides{{CudnnUid::q_offsets, z.q.token},
                                                    {CudnnUid::k_offsets, z.k.token},
                                                    {CudnnUid::v_offsets, z.v.token},
                                                    {CudnnUid::out_offsets, z.output().token},
                                                    {CudnnUid::logsumexp_offsets, z.heads / z.parts(pass)}};
  if (pass == CudnnPass::backward) {
    strides.emplace_back(CudnnUid::key_gradient_offsets, z.key_gradient().token);
  }
  return strides;
}

CudnnTarget describe_device(const std::string& json, int capability) {
  const auto properties = std::make_shared<fe::DeviceProperties>();
  check(properties->deserialize({json.begin(), json.end()}));
  return {.properties = properties, .capability = capability};
}

CudnnGraph make_forward_graph(const CudnnSizes& z, const CudnnTarget& target) {
  GraphMaker graph(z, CudnnPass::forward, target);
  auto options = graph.options<fe::graph::SDPA_attributes>();
  options.set_generate_stats(true);
  const TensorRef q = graph.query(CudnnUid::q, z.q, CudnnUid::q_offsets);
  const TensorRef k = graph.key(CudnnUid::k, z.k, CudnnUid::k_offsets);
  const TensorRef v = graph.key(CudnnUid::v, z.v, CudnnUid::v_offsets);
  const auto [out, logsumexp] = (*graph).sdpa(q, k, v, options);
  graph.describe_query(out, CudnnUid::out, z.output(), CudnnUid::out_offsets);
  logsumexp->set_output(true);
  graph.describe_logsumexp(logsumexp);
  return graph.finish();
}

CudnnGraph make_backward_graph(const CudnnSizes& z, const CudnnTarget& target) {
  GraphMaker graph(z, CudnnPass::backward, target);
  auto options = graph.options<fe::graph::SDPA_backward_attributes>();
  options.set_deterministic_algorithm(z.in_order);
  if (z.shape.ragged) {
    options.set_max_total_seq_len_q(z.shape.tokens).set_max_total_seq_len_kv(z.shape.tokens);
  }
  const TensorRef q = graph.query(CudnnUid::q, z.q, CudnnUid::q_offsets);
  const TensorRef k = graph.key(CudnnUid::k, z.k, CudnnUid::k_offsets);
  const TensorRef v = graph.key(CudnnUid::v, z.v, CudnnUid::v_offsets);
  const TensorRef out = graph.query(CudnnUid::out, z.output(), CudnnUid::out_offsets);
  const TensorRef dout = graph.query(CudnnUid::dout, z.output(), CudnnUid::out_offsets);
  const auto [dq, dk, dv] = (*graph).sdpa_backward(q, k, v, out, dout, graph.logsumexp(), options);
  // Ragged dq lies as the output does, so that they have their offsets in common.
  graph.describe_query(dq, CudnnUid::dq, z.query_gradient(), CudnnUid::out_offsets);
  graph.describe_key(dk, CudnnUid::dk, z.key_gradient(), CudnnUid::key_gradient_offsets);
  graph.describe_key(dv, CudnnUid::dv, z.key_gradient(), CudnnUid::key_gradient_offsets);
  return graph.finish();
}

int64_t workspace_bytes(const CudnnGraph& graph) {
  int64_t bytes = 0;
  check(graph->get_workspace_size(bytes));
  return bytes;
}

void run_graph(const CudnnGraph& graph, cudnnHandle_t handle, std::unordered_map<int64_t, void*>& pointers,
               void* workspace) {
  check(graph->execute(handle, pointers, workspace));
}

}  // namespace pptrain::attention
