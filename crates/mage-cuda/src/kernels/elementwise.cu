// Row-wise and elementwise kernels. A thread handles eight neighbouring elements: 16 bytes of bf16.

// to[i] = from[rows[i]], by row.
extern "C" __global__ void gather_rows(const uint4* from, const u32* rows, int d8, uint4* to) {
    const uint4* x = from + (size_t)rows[blockIdx.x] * d8;
    uint4* y = to + (size_t)blockIdx.x * d8;
    for (int i = threadIdx.x; i < d8; i += blockDim.x) y[i] = x[i];
}

// to[rows[i]] += from[i], by row. Row indices must be distinct.
extern "C" __global__ void scatter_add_rows(const uint4* from, const u32* rows, int d8, uint4* to) {
    const uint4* x = from + (size_t)blockIdx.x * d8;
    uint4* y = to + (size_t)rows[blockIdx.x] * d8;
    for (int i = threadIdx.x; i < d8; i += blockDim.x) {
        float a[8], b[8];
        unpack8(x[i], a), unpack8(y[i], b);
#pragma unroll
        for (int j = 0; j < 8; j++) b[j] += a[j];
        y[i] = pack8(b);
    }
}

// to[tokens[i]] += sum of from[order[starts[i]..starts[i + 1]]], in order. The rows in that range belong to token
// `tokens[i]`.
extern "C" __global__ void embedding_grad(const uint4* from, const u32* order, const u32* starts, const u32* tokens, int d8, float* to) {
    u32 first = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    float* y = to + (size_t)tokens[blockIdx.x] * d8 * 8;
    for (int i = threadIdx.x; i < d8; i += blockDim.x) {
        float sum[8] = {};
        for (u32 r = first; r < end; r++) {
            float a[8];
            unpack8(from[(size_t)order[r] * d8 + i], a);
#pragma unroll
            for (int j = 0; j < 8; j++) sum[j] += a[j];
        }
#pragma unroll
        for (int j = 0; j < 8; j++) y[i * 8 + j] += sum[j];
    }
}

// y = x / rms(x) · w, one CTA per row. Stores 1 / rms.
extern "C" __global__ void rms_norm(const uint4* x, const uint4* w, float epsilon, int d8, uint4* y, float* rstds) {
    int t = threadIdx.x;
    size_t at = (size_t)blockIdx.x * d8 + t;
    float v[8], g[8], s = 0.f;
    if (t < d8) {
        unpack8(x[at], v), unpack8(w[t], g);
#pragma unroll
        for (int j = 0; j < 8; j++) s += v[j] * v[j];
    }
    float rstd = rsqrtf(block_sum(s) / (8.f * d8) + epsilon);
    if (t < d8) {
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] *= rstd * g[j];
        y[at] = pack8(v);
    }
    if (t == 0 && rstds) rstds[blockIdx.x] = rstd;
}

// Recomputes rms_norm from the stored 1 / rms.
extern "C" __global__ void rms_norm_recompute(const uint4* x, const uint4* w, const float* rstds, int d8, uint4* y) {
    float rstd = rstds[blockIdx.x];
    for (int t = threadIdx.x; t < d8; t += blockDim.x) {
        size_t at = (size_t)blockIdx.x * d8 + t;
        float v[8], g[8];
        unpack8(x[at], v), unpack8(w[t], g);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] *= rstd * g[j];
        y[at] = pack8(v);
    }
}

// Adds to dx. A CTA processes many rows and writes its partial sum of dw to `partial`, unless that is null.
extern "C" __global__ void rms_norm_grad(const uint4* dy, const uint4* x, const uint4* w, const float* rstds, int rows, int d8, uint4* dx, float* partial) {
    int t = threadIdx.x;
    float g[8] = {}, dw[8] = {};
    if (t < d8) unpack8(w[t], g);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        size_t at = (size_t)row * d8 + t;
        float rstd = rstds[row], v[8], a[8], s = 0.f;
        if (t < d8) {
            unpack8(x[at], v), unpack8(dy[at], a);
#pragma unroll
            for (int j = 0; j < 8; j++) s += a[j] * g[j] * v[j];
        }
        float k = block_sum(s) * rstd * rstd * rstd / (8.f * d8);
        if (t < d8) {
            float total[8];
            unpack8(dx[at], total);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                dw[j] += a[j] * v[j] * rstd;
                total[j] += rstd * a[j] * g[j] - v[j] * k;
            }
            dx[at] = pack8(total);
        }
    }
    if (partial && t < d8) {
#pragma unroll
        for (int j = 0; j < 8; j++) partial[((size_t)blockIdx.x * d8 + t) * 8 + j] = dw[j];
    }
}

// Adds the column sums of `partial` (count × width) to `to`: 32 columns and 8 groups of rows per CTA.
extern "C" __global__ void reduce_partials(const float* partial, int count, int width, float* to) {
    __shared__ float sums[8][33];
    int lane = threadIdx.x & 31, group = threadIdx.x >> 5, column = blockIdx.x * 32 + lane;
    float s = 0.f;
    if (column < width)
        for (int r = group; r < count; r += 8) s += partial[(size_t)r * width + column];
    sums[group][lane] = s;
    __syncthreads();
    if (group == 0 && column < width) {
        for (int r = 1; r < 8; r++) s += sums[r][lane];
        to[column] += s;
    }
}

// y = silu(gate) · up. A row of x holds gates, then ups.
extern "C" __global__ void swiglu(const uint4* x, int f8, uint4* y) {
    int i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= f8) return;
    const uint4* row = x + (size_t)blockIdx.x * 2 * f8;
    float g[8], u[8];
    unpack8(row[i], g), unpack8(row[f8 + i], u);
#pragma unroll
    for (int j = 0; j < 8; j++) g[j] = g[j] / (1.f + __expf(-g[j])) * u[j];
    y[(size_t)blockIdx.x * f8 + i] = pack8(g);
}

// dx from dy. Also recomputes y, which the weight gradient needs.
extern "C" __global__ void swiglu_grad(const uint4* dy, const uint4* x, int f8, uint4* dx, uint4* y) {
    int i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= f8) return;
    const uint4* row = x + (size_t)blockIdx.x * 2 * f8;
    uint4* to = dx + (size_t)blockIdx.x * 2 * f8;
    float g[8], u[8], d[8];
    unpack8(row[i], g), unpack8(row[f8 + i], u), unpack8(dy[(size_t)blockIdx.x * f8 + i], d);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float s = 1.f / (1.f + __expf(-g[j])), silu = g[j] * s;
        float dg = d[j] * u[j] * (s + silu * (1.f - s));
        float du = d[j] * silu;
        d[j] = silu * u[j], g[j] = dg, u[j] = du;
    }
    to[i] = pack8(g), to[f8 + i] = pack8(u);
    y[(size_t)blockIdx.x * f8 + i] = pack8(d);
}

extern "C" __global__ void f32_to_bf16(const float* from, u64 count, bf16* to) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) to[i] = to_bf16(from[i]);
}

// Sum of squares of 65,536 elements per CTA.
extern "C" __global__ void sum_of_squares(const float* x, u64 count, double* sums) {
    __shared__ double parts[256];
    u64 first = (u64)blockIdx.x << 16, end = first + 65536 < count ? first + 65536 : count;
    double s = 0;
    for (u64 i = first + threadIdx.x; i < end; i += 256) s += (double)x[i] * x[i];
    parts[threadIdx.x] = s;
    __syncthreads();
    for (int o = 128; o; o >>= 1) {
        if (threadIdx.x < o) parts[threadIdx.x] += parts[threadIdx.x + o];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = parts[0];
}

// One AdamW step. Resets the gradient to 0 and updates the bf16 copy of the parameters.
extern "C" __global__ void adamw(float* p, float* g, float* m, float* v, bf16* bf16_params, u64 count, float learning_rate, float beta1, float beta2, float epsilon, float weight_decay, float grad_scale, float correction1, float correction2) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        float d = g[i] * grad_scale;
        float a = beta1 * m[i] + (1.f - beta1) * d;
        float b = beta2 * v[i] + (1.f - beta2) * d * d;
        float x = p[i] * (1.f - learning_rate * weight_decay);
        x -= learning_rate * (a / correction1) / (sqrtf(b / correction2) + epsilon);
        m[i] = a, v[i] = b, p[i] = x, g[i] = 0.f;
        bf16_params[i] = to_bf16(x);
    }
}
