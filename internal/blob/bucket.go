package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"
	"gocloud.dev/gcerrors"
)

const defaultRegion = "us-east-1"

// partSize bounds the memory of one upload; a bucket takes at most 10,000 parts, so 8 MiB allows 78 GiB.
const partSize = 8 << 20

// bucket keeps objects in an S3-compatible bucket. An upload becomes visible when it is complete.
type bucket struct {
	b  *blob.Bucket
	at string // see Store.Endpoint
}

func openBucket(ctx context.Context, u *url.URL, access S3) (*bucket, error) {
	query := u.Query()
	region := query.Get("region")
	query.Del("region")
	for name := range query {
		return nil, fmt.Errorf("blob URL: unknown parameter %q; only region is known", name)
	}
	if (access.AccessKeyID == "") != (access.SecretAccessKey == "") {
		return nil, errors.New("HELMR_S3_ACCESS_KEY_ID and HELMR_S3_SECRET_ACCESS_KEY must be set together")
	}
	cfg, err := s3Config(ctx, region, access)
	if err != nil {
		return nil, err
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) {
		if access.Endpoint != "" {
			o.BaseEndpoint = aws.String(access.Endpoint)
			o.UsePathStyle = true
		}
		// Stores other than S3 itself often refuse the checksums that newer SDKs add unasked.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	})
	b, err := s3blob.OpenBucket(ctx, client, u.Host, nil)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", u.Host, err)
	}
	if prefix := strings.Trim(u.Path, "/"); prefix != "" {
		b = blob.PrefixedBucket(b, prefix+"/")
	}
	at, err := endpoint(ctx, client, u.Host)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find the endpoint of bucket %s: %w", u.Host, err), b.Close())
	}
	return &bucket{b: b, at: at}, nil
}

// endpoint gives the URL at which a client reaches a bucket. The client is asked itself, by having it sign a request that is
// never sent, so that what the SDK takes from its own settings counts.
func endpoint(ctx context.Context, client *s3.Client, bucket string) (string, error) {
	presign := s3.NewPresignClient(client, s3.WithPresignClientFromClientOptions(func(o *s3.Options) {
		o.Credentials = credentials.NewStaticCredentialsProvider("none", "none", "")
		o.DisableS3ExpressSessionAuth = aws.Bool(true)
	}))
	r, err := presign.PresignHeadBucket(ctx, &s3.HeadBucketInput{Bucket: aws.String(bucket)})
	if err != nil {
		return "", err
	}
	u, err := url.Parse(r.URL)
	if err != nil {
		return "", err
	}
	return u.Scheme + "://" + u.Host, nil
}

func (k *bucket) endpoint() string { return k.at }

func s3Config(ctx context.Context, region string, access S3) (aws.Config, error) {
	if access.AccessKeyID != "" {
		if region == "" {
			region = defaultRegion
		}
		return aws.Config{
			Region:      region,
			Credentials: credentials.NewStaticCredentialsProvider(access.AccessKeyID, access.SecretAccessKey, ""),
		}, nil
	}
	var opts []func(*config.LoadOptions) error
	if region != "" {
		opts = append(opts, config.WithRegion(region))
	}
	cfg, err := config.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return aws.Config{}, fmt.Errorf("find S3 credentials: %w", err)
	}
	if cfg.Region == "" {
		cfg.Region = defaultRegion
	}
	return cfg, nil
}

func (k *bucket) put(ctx context.Context, key string, r io.Reader) error {
	// Ending the writer's context before Close abandons the upload.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := k.b.NewWriter(ctx, key, &blob.WriterOptions{ContentType: "application/octet-stream", BufferSize: partSize})
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil {
		cancel()
		_ = w.Close()
		return err
	}
	return w.Close()
}

func (k *bucket) get(ctx context.Context, key string) (io.ReadCloser, error) {
	r, err := k.b.NewReader(ctx, key, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (k *bucket) size(ctx context.Context, key string) (int64, bool, error) {
	attrs, err := k.b.Attributes(ctx, key)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	return attrs.Size, true, nil
}

func (k *bucket) delete(ctx context.Context, key string) error {
	err := k.b.Delete(ctx, key)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil
	}
	return err
}

func (k *bucket) list(ctx context.Context, prefix string, each func(Info) error) error {
	it := k.b.List(&blob.ListOptions{Prefix: prefix})
	for {
		obj, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := each(Info{Key: obj.Key, Size: obj.Size, ModifiedAt: obj.ModTime}); err != nil {
			return err
		}
	}
}

func (k *bucket) check(ctx context.Context) error {
	ok, err := k.b.IsAccessible(ctx)
	if err != nil {
		return fmt.Errorf("reach bucket: %w", err)
	}
	if !ok {
		return errors.New("reach bucket: it does not exist, or the credentials do not open it")
	}
	return nil
}

func (k *bucket) close() error { return k.b.Close() }

// A bucket needs no staging: each upload is durable and complete when it answers.
func (k *bucket) batch() batch { return bucketBatch{k} }

type bucketBatch struct{ k *bucket }

func (b bucketBatch) put(ctx context.Context, key string, data []byte) error {
	return b.k.put(ctx, key, bytes.NewReader(data))
}

func (b bucketBatch) last(ctx context.Context, key string, data []byte) error {
	return b.put(ctx, key, data) // the others are there
}
func (b bucketBatch) commit(ctx context.Context) error { return ctx.Err() }
func (b bucketBatch) discard()                         {}
